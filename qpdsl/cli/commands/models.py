"""`qpdsl models`: the models that come with the package."""

from __future__ import annotations

import click

from qpdsl.cli.console import put
from qpdsl.cli.exits import Exit
from qpdsl.cli.shared_options import format_option

_OWN = """\
A model of your own: any Hugging Face decoder with safetensors weights, by its folder or its hub id, or a GGUF file.
  in a program:         model llm = "Qwen/Qwen3-0.6B"
  a GGUF file:          model llm = "./model-Q4_K_M.gguf"
  for a shipped one:    qpdsl run beam_search --model llm=./my-model --set problem="…"
  with a LoRA adapter:  model llm = "Qwen/Qwen3-0.6B" adapter="./my-lora"
                        qpdsl run beam_search --model llm=./my-model --adapter llm=./my-lora --set problem="…\""""


@click.command(short_help="List the models that come with qpdsl.")
@format_option
def command(form: str) -> Exit:
    """List the models that come with qpdsl, and say how to use one of your own."""
    import json

    from qpdsl import zoo

    rows = []
    for model in zoo.BUILTIN:
        folder = zoo.path(model.name)
        size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) if folder.is_dir() else 0
        rows.append(
            {
                "name": model.name,
                "role": model.role,
                "parameters": model.parameters,
                "bytes": size,
                "description": model.description,
            }
        )
    if form == "json":
        put(json.dumps(rows, ensure_ascii=False, indent=2))
        return Exit.OK
    for model, row in zip(zoo.BUILTIN, rows, strict=True):
        parameters, megabytes = model.parameters / 1e6, int(str(row["bytes"])) / 1e6
        put(f"{model.name:<18} {model.role:<10} {parameters:5.1f}M parameters {megabytes:6.1f} MB")
        put(f"    {model.description}")
    put(f"\n{_OWN}")
    return Exit.OK

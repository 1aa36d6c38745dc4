"""`qpdsl models`: the models that come with the package, and what those on servers can do."""

from __future__ import annotations

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.shared_options import format_option

_OWN = """\
A model of your own: any Hugging Face decoder with safetensors weights, by its folder or its hub id, or a GGUF file.
  in a program:         model llm = "Qwen/Qwen3-0.6B"
  a GGUF file:          model llm = "./model-Q4_K_M.gguf"
  for a shipped one:    qpdsl run beam_search --model llm=./my-model --set problem="…"
  with a LoRA adapter:  model llm = "Qwen/Qwen3-0.6B" adapter="./my-lora"
                        qpdsl run beam_search --model llm=./my-model --adapter llm=./my-lora --set problem="…"
  on a server:          qpdsl run best_of_n --model "llm=vllm:http://127.0.0.1:8000/v1#name" --set problem="…"
                        qpdsl models --probe http://127.0.0.1:8000/v1\
"""


@click.command(short_help="List the models that come with qpdsl, or see what one on a server can do.")
@click.option(
    "--probe",
    metavar="URL",
    help="Ask a server what it can do, by some fifty short requests: `http://127.0.0.1:8000/v1`, with `#NAME` for one "
    "of several models, or a whole id such as `vllm:http://127.0.0.1:8000/v1#NAME tokenizer=./folder`.",
)
@format_option
def command(probe: str | None, form: str) -> Exit:
    """List the models that come with qpdsl, and say how to use one of your own.

    With --probe, see which server answers at a URL, which models it has, and what it does of all that programs may
    need. Each thing is tried and judged by what comes back, since servers answer with success to what they ignore. What
    is found is kept for a day, and `run` goes by it. Exits with 4 if the server does not answer, takes no request
    without a key, or does not have the model.
    """
    if probe is not None:
        return _probed(probe, form)
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


def _probed(target: str, form: str) -> Exit:
    import asyncio
    import json
    from importlib.util import find_spec

    from qpdsl.errors import UsageError

    if find_spec("httpx") is None:
        raise UsageError("a server is asked with httpx", "pip install 'qpdsl[remote]'")
    from qpdsl.executor.remote.server.abilities_json import abilities_json
    from qpdsl.model_location import locate_tokenizer
    from qpdsl.remote.abilities_words import in_words
    from qpdsl.remote.probing import probed

    found = asyncio.run(probed(target, locate_tokenizer, say))
    if form == "json":
        id = None if found.address is None else str(found.address)
        abilities = None if found.abilities is None else abilities_json(found.abilities)
        seen = {"url": found.url, "server": found.server, "models": found.models, "model": id, "abilities": abilities}
        put(json.dumps(seen, ensure_ascii=False, indent=2))
        return Exit.OK
    put(f"{found.server or 'a server'} at {found.url}")
    put("models: " + (", ".join(found.models) or "it lists none"))
    if found.address is None or found.abilities is None:
        say(f"help: `{found.url}#NAME` says which of them is to be asked")
        return Exit.OK
    put(f"\nmodel llm = {json.dumps(str(found.address), ensure_ascii=False)}")
    for name, words in in_words(found.abilities).items():
        put(f"    {name:<34} {words}")
    for note in found.abilities.notes:
        say(f"note: the server {note}")
    return Exit.OK

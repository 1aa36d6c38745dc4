"""`qpdsl models`: the models that come with the package, how one thinks, and what those on servers can do."""

from __future__ import annotations

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.proposals import complete_ids
from qpdsl.cli.shared_options import format_option

_OWN = """\
A model of your own: any Hugging Face decoder with safetensors weights, by its folder or its hub id, or a GGUF file.
  in a program:         model llm = "Qwen/Qwen3-0.6B"
  a GGUF file:          model llm = "./model-Q4_K_M.gguf"
  for a shipped one:    qpdsl run self_consistency --model llm=./my-model "…"
  with a LoRA adapter:  model llm = "Qwen/Qwen3-0.6B" adapter="./my-lora"
                        qpdsl run self_consistency --model llm=./my-model --adapter llm=./my-lora "…"
  on a server:          qpdsl run self_consistency --model "llm=vllm:http://127.0.0.1:8000/v1#name" "…"
                        qpdsl run self_consistency --model llm=ollama:llama3.2 "…"   # or lmstudio:, openrouter:, gpt-…
                        qpdsl models --probe http://127.0.0.1:8000/v1
  how it thinks:        qpdsl models Qwen/Qwen3-0.6B\
"""


@click.command()
@click.argument("model", metavar="ID", required=False, shell_complete=complete_ids)
@click.option(
    "--probe",
    metavar="URL",
    help="Ask a server what it can do, by some fifty short requests: `http://127.0.0.1:8000/v1`, with `#NAME` for one "
    "of several models, or a whole id such as `vllm:http://127.0.0.1:8000/v1#NAME tokenizer=./folder`.",
)
@format_option
def command(model: str | None, probe: str | None, form: str) -> Exit:
    """List the models that come with qpdsl, and say how to use one of your own.

    With the ID of a model, see how it thinks before it answers, by its tokenizer and chat template: what opens and
    closes a thought, which values of `think=` it knows, and what becomes of the thoughts of earlier turns. No weights
    are loaded. Exits with 4 if there is no such tokenizer here.

    With --probe, see which server answers at a URL, which models it has, and what it does of all that programs may
    need. Each thing is tried and judged by what comes back, since servers answer with success to what they ignore. What
    is found is kept for a day, and `run` goes by it. Exits with 4 if the server does not answer, takes no request
    without a key, or does not have the model.
    """
    if probe is not None:
        if model is not None:
            raise click.UsageError("--probe goes without ID")
        return _probed(probe, form)
    if model is not None:
        return _described(model, form)
    import json

    from qpdsl import zoo

    rows = []
    for known in zoo.BUILTIN:
        folder = zoo.path(known.name)
        size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) if folder.is_dir() else 0
        rows.append(
            {
                "name": known.name,
                "role": known.role,
                "parameters": known.parameters,
                "bytes": size,
                "description": known.description,
            }
        )
    if form == "json":
        put(json.dumps(rows, ensure_ascii=False, indent=2))
        return Exit.OK
    for known, row in zip(zoo.BUILTIN, rows, strict=True):
        parameters, megabytes = known.parameters / 1e6, int(str(row["bytes"])) / 1e6
        put(f"{known.name:<20} {known.role:<10} {parameters:5.1f}M parameters {megabytes:6.1f} MB")
        put(f"    {known.description}")
    put(f"\n{_OWN}")
    return Exit.OK


def _described(model: str, form: str) -> Exit:
    """Prints how a model thinks."""
    import json

    from qpdsl.errors import UsageError
    from qpdsl.executor.models.load import load_tokens
    from qpdsl.executor.text.thinking import thinking_of
    from qpdsl.grammar.model_id import think_of
    from qpdsl.model_location import tokenizer_place

    tokens = load_tokens(model, tokenizer_place(model), say)
    try:
        thinking, note = thinking_of(tokens.tokenizer, think_of(model))
    except ValueError as error:
        raise UsageError(f"`think` {error}") from None
    if form == "json":
        put(json.dumps({"model": model, "thinking": None if thinking is None else thinking.data}, ensure_ascii=False))
    elif thinking is None:
        put(f"{model} does not think before it answers")
    else:
        put(f"{model} thinks before it answers; found in {thinking.found}")
        for name, words in thinking.in_words.items():
            put(f"    {name:<22} {words}")
    if note:
        say(f"note: {note}")
    return Exit.OK


def _probed(target: str, form: str) -> Exit:
    import asyncio
    import json
    from importlib.util import find_spec

    from qpdsl.errors import UsageError, installing

    if find_spec("httpx") is None:
        raise UsageError("servers need the extra `remote`", installing("remote"))
    from qpdsl.executor.remote.probe.known_servers import probed
    from qpdsl.executor.remote.server.server_capabilities import capabilities_json, in_words
    from qpdsl.grammar.model_id import written_out
    from qpdsl.model_location import locate_tokenizer

    # Which dialect a bare URL speaks is found out.
    id = target if target.startswith("http") else written_out(target)
    found = asyncio.run(probed(id, locate_tokenizer, say))
    if form == "json":
        model = None if found.address is None else str(found.address)
        capabilities = None if found.capabilities is None else capabilities_json(found.capabilities)
        seen = {
            "url": found.url,
            "server": found.server,
            "models": found.models,
            "model": model,
            "abilities": capabilities,
        }
        put(json.dumps(seen, ensure_ascii=False, indent=2))
        return Exit.OK
    put(f"{found.server or 'a server'} at {found.url}")
    put("models: " + (", ".join(found.models) or "it lists none"))
    if found.address is None or found.capabilities is None:
        say(f"help: `{found.url}#NAME` says which of them is to be asked")
        return Exit.OK
    put(f"\nmodel llm = {json.dumps(str(found.address), ensure_ascii=False)}")
    for name, words in in_words(found.capabilities).items():
        put(f"    {name:<34} {words}")
    for note in found.capabilities.notes:
        say(f"note: the server {note}")
    return Exit.OK

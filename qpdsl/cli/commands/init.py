"""`qpdsl init`: the files that a project begins with."""

from __future__ import annotations

import click

from qpdsl.cli.console import put
from qpdsl.cli.exits import Exit
from qpdsl.cli.proposals import complete_ids

_PROGRAM = """\
# Samples several solutions of a problem and takes the answer that most of them reach.

model llm = "zoo/counting"

program solve(problem: text, n: int = 4, system: text?, max_tokens: int = 512) -> text {
  chat system=system user=problem
  generate llm n=n temperature=0.8 max_tokens=max_tokens
  extract answer = final_answer
  vote answer equal=number
}
"""
_SETTINGS = """\
# What commands in this folder are given where their command line says nothing: `qpdsl settings` shows it.

[models]
%(llm)s

[set]
%(system)s

[data]
problems = "problems.jsonl"
"""
_SYSTEM = 'system = "Solve the problem step by step. End with: The answer is N."'
_ROWS = 10


@click.command()
@click.option("--model", metavar="ID|PATH", shell_complete=complete_ids, help="Your model. [default: a built-in one]")
def command(model: str | None) -> Exit:
    """Begin a project in this folder: `solve.qp`, a program; `qpdsl.toml`, with your model; `problems.jsonl`, ten rows.

    Files that are there stay as they are: then nothing is written.

    \b
    qpdsl init --model ./model-Q4_K_M.gguf
    qpdsl run solve.qp --input problems
    """
    import json
    from itertools import islice
    from pathlib import Path

    from qpdsl.errors import UsageError
    from qpdsl.grammar.printable import printable
    from qpdsl.output import write_whole
    from qpdsl.session.programs import shipped_data
    from qpdsl.session.project import NAME

    if model is not None and printable(model) != model:
        raise UsageError("`--model` takes a name that can be printed")
    with shipped_data()["counting-500"].open(encoding="utf-8") as file:
        rows = "".join(islice(file, _ROWS))
    llm = 'llm = "./model.gguf"' if model is None else f"llm = {json.dumps(_place(model), ensure_ascii=False)}"
    # The built-in model answers without being told how.
    own = "# " if model is None else ""
    texts = {
        "solve.qp": _PROGRAM,
        NAME: _SETTINGS % {"llm": f"{own}{llm}", "system": f"{own}{_SYSTEM}"},
        "problems.jsonl": rows,
    }
    for name in texts:
        if Path(name).exists() or Path(name).is_symlink():
            raise UsageError(f"`{name}` is there already", "begin in an empty folder")
    for name, text in texts.items():
        write_whole(Path(name), text.splitlines())
    put(f"{', '.join(texts)} written; go on with `qpdsl run solve.qp --input problems`")
    return Exit.OK


def _place(model: str) -> str:
    """A path as the file of the project has it: one of this folder begins with a dot."""
    from pathlib import Path

    path = Path(model).expanduser()
    return f"./{path}" if path.exists() and not path.is_absolute() and not model.startswith(".") else model

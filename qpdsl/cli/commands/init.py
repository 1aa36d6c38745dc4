"""`qpdsl init`: the files that a project begins with."""

from __future__ import annotations

import re
from pathlib import Path

import click

from qpdsl.cli.console import put
from qpdsl.cli.exits import Exit
from qpdsl.cli.proposals import complete_ids
from qpdsl.grammar.model_id import base_of

_PROGRAM = """\
# Samples several solutions of a problem and takes the answer that most of them reach.

# The `llm` of qpdsl.toml, where it names one, goes before this.
model llm = "zoo/counting"

program solve(problem: text, n: int = 4, system: text?, max_tokens: int = 256) -> text {
  chat system=system user=problem
  generate llm n=n temperature=0.4 max_tokens=max_tokens
  extract answer = last_number
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
# A model behind the name that it has in a program, as `run` takes it.
_NAMED = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)
# What small models solve in part; the built-in one knows problems of its own kind only.
_EASY = (
    ("What is 2 + 3?", 5),
    ("What is 10 - 4?", 6),
    ("Tim has 3 apples and gets 4 more. How many apples does Tim have?", 7),
    ("Mia has 5 pens and buys 3 more. How many pens does Mia have?", 8),
    ("Anna has 9 coins and spends 4. How many coins are left?", 5),
    ("Tom has 2 bags with 5 apples in each. How many apples does Tom have?", 10),
    ("How many days are there in a week?", 7),
    ("How many minutes are there in an hour?", 60),
    ("How many legs does a spider have?", 8),
    ("A ticket costs 12 dollars. How much do 5 tickets cost?", 60),
)


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

    from qpdsl.errors import UsageError
    from qpdsl.grammar.model_id import is_remote, written_out
    from qpdsl.grammar.printable import printable
    from qpdsl.model_location import check_models
    from qpdsl.output import write_whole
    from qpdsl.session.programs import shipped_data
    from qpdsl.session.project import NAME

    if model is not None and (named := _NAMED.match(model)) is not None:
        if named[1] != "llm":
            raise UsageError(f"`--model`: the program's model is `llm`, not `{named[1]}`", f"`--model {named[2]}`")
        model = named[2]
    if model is not None and printable(model) != model:
        raise UsageError("`--model` takes a name that can be printed")
    if model is None or model.startswith("zoo/"):
        with shipped_data()["counting-500"].open(encoding="utf-8") as file:
            rows = "".join(islice(file, _ROWS))
    else:
        records = enumerate(_EASY, 1)
        rows = "\n".join(
            json.dumps({"id": f"easy-{number:02}", "problem": problem, "answer": str(answer)})
            for number, (problem, answer) in records
        )
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
    if model is not None and _is_path(model) and not Path(base_of(model)).expanduser().exists():
        raise UsageError(f"there is no `{model}`", "`--model` takes a file or folder, a hub id, or a model on a server")
    if model is not None and not is_remote(written_out(model)):
        check_models([model])
    for name, text in texts.items():
        write_whole(Path(name), text.splitlines())
    put(f"{', '.join(texts)} written; go on with `qpdsl run solve.qp --input problems`")
    if model is None:
        put(f"A built-in model answers, which knows problems like those only: set `llm` in {NAME} to yours")
    return Exit.OK


def _place(model: str) -> str:
    """A path as the file of the project has it: one of this folder begins with a dot."""
    path = Path(model).expanduser()
    return f"./{path}" if path.exists() and not path.is_absolute() and not model.startswith(".") else model


def _is_path(model: str) -> bool:
    return base_of(model).endswith(".gguf") or model.startswith((".", "/", "~"))

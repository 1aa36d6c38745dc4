"""`qpdsl programs`: the programs and data sets that come with the package."""

from __future__ import annotations

import json

import click

from qpdsl.cli.console import put
from qpdsl.cli.exits import Exit
from qpdsl.cli.proposals import complete_shipped
from qpdsl.cli.shared_options import format_option

# What the lists of programs are called, and whether a verifier judges there.
_HEADINGS = {
    "with a model alone, also your own:": False,
    "with a verifier, `prm`, of your model's task (the built-in one knows the built-in models' alone):": True,
}


@click.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=complete_shipped)
@format_option
def command(name: str | None, form: str) -> Exit:
    """List the programs and data sets that come with qpdsl; with a NAME, print that program.

    \b
    qpdsl programs beam_search > my_search.qp
    """
    from qpdsl.errors import UsageError, unknown
    from qpdsl.session.programs import shipped_data, shipped_idioms, shipped_programs

    programs = {name: entry.read_text("utf-8") for name, entry in shipped_programs().items()}
    idioms = {name: entry.read_text("utf-8") for name, entry in shipped_idioms().items()}
    texts = {**programs, **idioms}
    if name is not None and name not in texts:
        raise UsageError(unknown(name, texts, "there is no shipped program"))
    if form == "json":
        shown = texts if name is None else {name: texts[name]}
        put(json.dumps([{"name": name, "text": text} for name, text in shown.items()], ensure_ascii=False, indent=2))
    elif name is not None:
        put(texts[name], end="")
    else:
        table = click.HelpFormatter(max_width=100)
        width = max(map(len, programs))
        for heading, judged in _HEADINGS.items():
            own = [name for name, text in programs.items() if ("\nmodel prm = " in text) is judged]
            table.write(f"{heading}\n")
            table.write_dl([(f"{program:<{width}}", _first_sentence(programs[program])) for program in own])
            table.write("\n")
        table.write("`--model llm=…` takes your own model, `--set system=…` tells it how to end its answer\n")
        table.write("\nidioms, a few lines each:\n")
        table.write_dl([(idiom, _title(text)) for idiom, text in idioms.items()], col_max=40)
        put(table.getvalue(), end="")
        put(f"\ndata sets for `qpdsl run --input`: {', '.join(shipped_data())}")
    return Exit.OK


def _first_sentence(text: str) -> str:
    """The first sentence of the comment that a program begins with."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    comment = " ".join(lines)
    end = comment.find(". ")
    return comment if end < 0 else comment[: end + 1]


def _title(text: str) -> str:
    """What an idiom is called, with its source: its first line up to the colon behind that."""
    line = text.partition("\n")[0].removeprefix("#").strip()
    name, sign, _ = line.partition("): ")
    return f"{name})" if sign else line.partition(": ")[0]

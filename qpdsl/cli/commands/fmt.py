"""`qpdsl fmt`: programs in the one layout."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.proposals import complete_files


@dataclass(frozen=True, slots=True)
class _Text:
    """A program's text before and after; `path` is None for standard input."""

    name: str
    path: Path | None
    before: str
    after: str

    @property
    def changed(self) -> bool:
        return self.before != self.after


@click.command(
    epilog="Exits with 0, with 1 where --check finds a file that would change, with 2 where a file does not parse.",
)
@click.argument("targets", metavar="FILE…", nargs=-1, required=True, shell_complete=complete_files)
@click.option("--check", is_flag=True, help="Change nothing; name the files that would change, and exit with 1.")
@click.option("--diff", is_flag=True, help="Change nothing; print what would change.")
def command(targets: tuple[str, ...], check: bool, diff: bool) -> Exit:
    """Lay program files out in the one style, in their place; `-` reads a program from stdin and prints it.

    Comments stay. A file that does not parse is left as it is, and what is wrong with it is shown.
    """
    from qpdsl.cli.diagnostics import say_error, show_error
    from qpdsl.errors import UsageError
    from qpdsl.grammar.diagnostic import QpError

    code = Exit.OK
    for target in targets:
        try:
            text = _formatted(target)
            if diff:
                put("".join(_difference(text)), end="")
            if check and text.changed:
                code = max(code, Exit.ROW_FAILED)
                say(f"{text.name}: would change")
            if not check and not diff:
                _write(text)
        except QpError as error:
            show_error(error)
            code = Exit.USAGE
        except UsageError as error:
            say_error(error)
            code = Exit.USAGE
    return Exit(code)


def _formatted(target: str) -> _Text:
    from qpdsl.grammar.format.formatter import format_source
    from qpdsl.grammar.source import Source
    from qpdsl.session.programs import read_file, read_target

    path = None if target == "-" else Path(target)
    source = read_target("-") if path is None else Source(target, read_file(path))
    return _Text(source.name, path, source.text, format_source(source))


def _difference(text: _Text) -> list[str]:
    lines = unified_diff(
        text.before.splitlines(keepends=True), text.after.splitlines(keepends=True), text.name, text.name
    )
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]


def _write(text: _Text) -> None:
    from qpdsl.errors import UsageError
    from qpdsl.output import replace_text
    from qpdsl.session.programs import read_file

    if text.path is None:
        put(text.after, end="")
    elif text.changed:
        if read_file(text.path) != text.before:
            raise UsageError(f"`{text.name}` was changed in the meantime and is left as it is", "run `qpdsl fmt` again")
        replace_text(text.path, text.after)
        say(f"{text.name}: formatted")

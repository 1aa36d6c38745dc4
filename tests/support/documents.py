"""The programs that documents show, and what parser and checker find in them."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from qpdsl.cli import main
from qpdsl.executor.models.load import load_text_model
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.files import Files
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.model_location import tokenizer_place
from qpdsl.plan_thoughts import check_thoughts
from qpdsl.planner.check.program import check, lower, lower_all
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.plan.naive import plan
from tests.support.paths import ROOT

_BLOCK = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A command with what it prints.
COMMAND = re.compile(r"^```console\n\$ ([^\n]*)\n(.*?)^```$", re.M | re.S)
_FAILS = re.compile(r"fails(?: (QP\d{3}))?")


@dataclass(frozen=True)
class Block:
    """A program in a document. `fails` is the code that it must give, "" for any, None where it must be right."""

    line: int
    text: str
    fails: str | None


def programs(document: Path) -> Iterator[Block]:
    """The ```qp blocks of a document."""
    text = document.read_text("utf-8")
    for match in _BLOCK.finditer(text):
        language, info, content = match.groups()
        if language != "qp":
            continue
        tag = _FAILS.fullmatch(info) if info else None
        assert info is None or tag, f"{document.name}: a block is marked `{info}`"
        yield Block(text.count("\n", 0, match.start()) + 1, content, (tag[1] or "") if tag else None)


def files(document: Path) -> dict[str, str]:
    """The files that a document shows: blocks marked by a language and a name (```json order.schema.json)."""
    found = _BLOCK.findall(document.read_text("utf-8"))
    return {info: content for language, info, content in found if language != "qp" and info}


def codes(text: str, folder: Path | None = None, program: str | None = None) -> list[str]:
    """The codes of all that is wrong with a file, or with choosing a program of it, warnings included.

    A file of several programs is checked as a whole; "" asks for its only one.
    """
    environment = Environment(files=Files(folder))
    try:
        file = parse_file(Source("document.qp", text))
        chosen = program is not None
        found = lower(file, program or None, environment).warnings if chosen else check(file, environment)
    except QpError as error:
        found = error.diagnostics
    return [diagnostic.code for diagnostic in found]


def codes_with_models(text: str, folder: Path, program: str | None = None) -> list[str]:
    """What is wrong with a file, or with what it asks of its models, which are built in."""
    found = codes(text, folder, program)
    for own in lower_all(parse_file(Source("document.qp", text)), Environment(files=Files(folder)))[0]:
        models = {id: load_text_model(id, tokenizer_place(id)) for id in own.models.values()}
        try:
            check_thoughts(plan(own), models)
        except QpError as error:
            found += [diagnostic.code for diagnostic in error.diagnostics]
    return found


def python_codes(text: str, folder: Path, program: str | None = None) -> list[str]:
    """The codes of all that is wrong with programs in Python, which are composed where they are defined."""
    path = folder / f"example_{abs(hash(text))}.py"
    path.write_text(text, "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except QpError as error:
        return [diagnostic.code for diagnostic in error.diagnostics]
    return []


Masks = Iterable[tuple[re.Pattern[str], str]]
# What takes as long as it takes.
TIMED = (re.compile(r"^(seconds|first token|each token) .*", re.M), r"\1")


def masked(text: str, varying: Masks = (TIMED,)) -> list[str]:
    """The lines of what a command prints, without what is another at another time or as wide as its neighbours."""
    for pattern, name in varying:
        text = pattern.sub(name, text)
    return [" ".join(line.split()) for line in text.splitlines()]


def is_shown(found: list[str], shown: list[str]) -> bool:
    """Whether the lines are those that the page shows, where `…` may stand for any."""
    pattern = "".join("(?:.*\n)*?" if line == "…" else f"{re.escape(line)}\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in found)) is not None


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command of a page prints: notes, then data."""
    capsys.readouterr()
    main(shlex.split(command)[1:])
    out, err = capsys.readouterr()
    return (err + out).replace(f"{ROOT}/", "")


def check_commands(
    page: Path,
    prints: Callable[[str], str | None],
    varying: Masks = (TIMED,),
    *,
    part: Callable[[str], str] = str,
    written: Callable[[str], str] = str,
    commands: re.Pattern[str] = COMMAND,
) -> None:
    """The commands of a part of a page, one after another, print what it shows; `QPDSL_REGENERATE` writes it anew.

    `prints` carries a command out, and gives None where nothing is compared; `written` is how a page has that.
    """
    text, anew = page.read_text("utf-8"), bool(os.environ.get("QPDSL_REGENERATE"))
    found = commands.findall(part(text))
    assert found
    for command, shown in found:
        if (told := prints(command)) is None:
            continue
        if anew:
            text = text.replace(f"$ {command}\n{shown}```", f"$ {command}\n{written(told)}```", 1)
        else:
            assert masked(told, varying) == masked(shown, varying), f"{command}\n{told}"
    if anew:
        page.write_text(text, "utf-8")

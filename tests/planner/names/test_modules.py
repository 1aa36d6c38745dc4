"""What a program may read: files under its own folder, wherever links and `..` lead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.files import Files
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import check
from qpdsl.planner.names.modules import Environment

PROGRAM = 'program p(q: text) { chat user=q | generate "m" %s }'
FORMS = ['schema S from "%s"\n' + PROGRAM % "as S", PROGRAM % 'as grammar("%s")', 'use "%s"\n' + PROGRAM % ""]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program's folder beside another one, with links that lead out of it and links that stay inside."""
    home, other = tmp_path / "home", tmp_path / "other"
    for where in (home / "sub", other):
        where.mkdir(parents=True)
        (where / "s.json").write_text('{"type": "string"}')
    (home / "out.json").symlink_to(other / "s.json")
    (home / "out").symlink_to(other)
    (home / "in").symlink_to(home / "sub")
    (home / "loop").symlink_to("loop")
    os.mkfifo(home / "pipe")
    return home


def refusals(text: str, folder: Path, *allowed: Path) -> list[str]:
    try:
        check(parse_file(Source("p.qp", text)), Environment(Files(folder, allowed)))
    except QpError as error:
        return [found.message for found in error.diagnostics if found.code == "QP228"]
    return []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", ["../other/s.json", "sub/../../other/s.json", "out.json", "out/s.json", "/etc/passwd"])
def test_nothing_outside_is_read(form: str, path: str, folder: Path) -> None:
    assert refusals(form % path, folder) == [f"`{path}` lies outside the program's folder"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", ["loop", "loop/s.json", "pipe", "sub", "a" * 5000, "\\u0000"])
def test_what_is_no_file_is_refused(form: str, path: str, folder: Path) -> None:
    assert len(refusals(form % path, folder)) == 1


def test_links_and_dots_that_stay_inside(folder: Path) -> None:
    for path in ("sub/s.json", "in/s.json", "sub/../in/s.json"):
        assert refusals(FORMS[0] % path, folder) == []


def test_folders_that_the_caller_allows(folder: Path) -> None:
    for path in ("../other/s.json", "out.json", "out/s.json"):
        assert refusals(FORMS[0] % path, folder, folder.parent / "other") == []


def test_a_used_file_reads_no_further_than_its_user(folder: Path) -> None:
    (folder / "sub" / "lib.qp").write_text('schema S from "../../other/s.json"\nschema T from "s.json"\n')
    text = 'use "sub/lib.qp"\n' + PROGRAM % "as T"
    assert refusals(text, folder) == ["`../../other/s.json` lies outside the program's folder"]
    assert refusals(text, folder, folder.parent / "other") == []


def test_a_program_without_a_folder_reads_nothing() -> None:
    with pytest.raises(QpError):
        check(parse_file(Source("-e", FORMS[0] % "s.json")))

"""What documents show is true: their programs compile, those marked as failing do not, and CI runs what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from tests.support.documents import Block, codes, files, programs, python_codes
from tests.support.paths import ROOT

# The programs in `errors.md` are those of the pages that it is made of; those are tested by themselves.
DOCUMENTS = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name != "errors.md")]
PROGRAMS = [
    pytest.param(document, block, id=f"{document.name}:{block.line}")
    for document in DOCUMENTS
    for block in programs(document)
]


@pytest.mark.parametrize(("document", "block"), PROGRAMS)
def test_programs_in_documents(document: Path, block: Block, tmp_path: Path) -> None:
    for name, text in files(document).items():
        (tmp_path / name).write_text(text, "utf-8")
    found = codes(block.text, tmp_path)
    if document.name == "tools.md":
        # Whoever runs these hands the tools in, as `tests/programs/test_tools.py` does.
        found = [code for code in found if code != "QP280"]
    if block.fails is None:
        assert found == []
    elif block.fails:
        assert set(found) == {block.fails}
    else:
        assert found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_errors_that_are_shown_are_those_that_are_given(document: Path) -> None:
    shown = re.findall(
        r"^```qp fails\b[^\n]*\n(.*?)^```\n\n```\n(error.*?)^```$", document.read_text("utf-8"), re.M | re.S
    )
    for text, error in shown:
        name = re.search(r"--> (\S+?):", error)
        assert name
        with pytest.raises(QpError) as found:
            lower(parse_file(Source(name[1], text)))
        assert f"{found.value}\n" == error
    assert shown or document.name != "language.md"


def test_python_in_the_language_book(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "start" / "language.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert blocks and not [code for block in blocks for code in python_codes(block, tmp_path)]


def test_ci_runs_the_readmes_commands() -> None:
    search = re.search(r"grep '([^']+)' README.md", (ROOT / ".ci" / "run").read_text("utf-8"))
    assert search
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    commands = [line for line in lines if re.search(search[1], line)]
    assert [".venv/bin/python -m pytest" in command for command in commands].count(True) == 1
    assert [".venv/bin/qpdsl" in command for command in commands].count(True) == 1


def test_the_moving_picture_plays_by_itself() -> None:
    """As an image: with styles alone, small enough to be loaded with the page, still for whoever wants that."""
    picture = (ROOT / "docs" / "pictures" / "dashboard.svg").read_text("utf-8")
    assert "docs/pictures/dashboard.svg" in (ROOT / "README.md").read_text("utf-8")
    assert len(picture.encode()) < 1_000_000 and picture.count("@keyframes") > 20
    assert "prefers-reduced-motion" in picture and "<script" not in picture
    assert picture.count("http") == 1 and 'xmlns="http://www.w3.org/2000/svg"' in picture

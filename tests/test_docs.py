"""What documents show is true: their programs compile, those marked as failing do not, and CI runs what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import Block, codes, files, programs, python_codes

ROOT = Path(__file__).resolve().parent.parent
# The programs in `errors.md` are those of the pages that it is made of; those are tested by themselves.
DOCUMENTS = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "errors.md")]
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
    if block.fails is None:
        assert found == []
    elif block.fails:
        assert set(found) == {block.fails}
    else:
        assert found


def test_python_in_the_language_book(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "language.md").read_text("utf-8"), re.M | re.S)
    assert blocks and not [code for block in blocks for code in python_codes(block, tmp_path)]


def test_ci_runs_the_readmes_test_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [line for line in readme.splitlines() if line.startswith("python3 -m venv") and "pytest" in line]
    assert len(commands) == 1
    assert commands[0] in (ROOT / ".ci" / "run").read_text(encoding="utf-8")

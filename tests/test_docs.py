"""What documents show is true: their programs compile, those marked as failing do not, and CI runs what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.parse import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.lower import lower
from qpdsl.planner.plan import plan

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```qp( fails)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(match[2], match[1] == " fails", id=f"{document.name}-{index}")
    for document in DOCUMENTS
    for index, match in enumerate(BLOCK.finditer(document.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize(("text", "fails"), BLOCKS)
def test_programs_in_documents(text: str, fails: bool) -> None:
    source = Source("document.qp", text)
    if fails:
        with pytest.raises(QpError):
            lower(parse_file(source))
    else:
        assert plan(lower(parse_file(source))).ops


def test_ci_runs_the_readmes_test_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [line for line in readme.splitlines() if line.startswith("python3 -m venv") and "pytest" in line]
    assert len(commands) == 1
    assert commands[0] in (ROOT / ".ci" / "run").read_text(encoding="utf-8")

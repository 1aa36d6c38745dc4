"""`qpdsl optimize`: what it refuses before it runs anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from tests.support.cli import Run

TOOL = """
import qpdsl

@qpdsl.tool(effects=True)
def send(word: str) -> str:
    return word
"""
PROGRAM = """model llm = "zoo/counting"
program p(problem: text, hint: text = "Count.") -> text {
  chat system=hint user=problem
  generate llm max_tokens=4
  STAGE
  return text
}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(TOOL, "utf-8")
    (tmp_path / "p.qp").write_text(PROGRAM.replace("STAGE", 'say "!"'), "utf-8")
    (tmp_path / "acts.qp").write_text(PROGRAM.replace("STAGE", "tool send(text) into said"), "utf-8")
    return tmp_path / "p.qp"


def test_a_tool_with_effects_is_not_called_for_each_text(qpdsl: Run, program: Path) -> None:
    folder = program.parent
    given = ("--input", "counting-500", "--reflect", "zoo/counting", "--python", folder / "tools.py")
    ran = qpdsl("optimize", folder / "acts.qp", *given)
    assert ran.code == Exit.USAGE and "`send` has effects" in ran.err


@pytest.mark.parametrize(
    ("target", "why"), [("p.qp", "is the program"), ("tools.py", "does not hold a program"), ("q.qp", "--overwrite")]
)
def test_what_is_there_is_not_lost(qpdsl: Run, program: Path, target: str, why: str) -> None:
    (program.parent / "q.qp").write_text(program.read_text("utf-8"), "utf-8")
    given = ("--input", "counting-500", "--reflect", "zoo/counting")
    ran = qpdsl("optimize", program, *given, "--output", program.parent / target)
    assert ran.code == Exit.USAGE and why in ran.err

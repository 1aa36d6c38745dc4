"""`--allow-code`, what it is refused for, and `check --sandbox`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.executor.runtime.sandbox import run as sandbox
from tests.support.cli import Run

PROGRAM = """\
model llm = "zoo/counting"

program tested(problem: text) -> text {
  chat user=problem
  generate llm max_tokens=2
  score passes("pass")
  return text
}
"""

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the walls are those of Linux")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "tested.qp"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


@pytest.fixture
def no_seccomp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_WALLS", frozenset({"namespaces", "Landlock"}))
    sandbox.refusal.cache_clear()
    monkeypatch.setattr(sandbox, "refusal", sandbox.refusal.__wrapped__)


def test_code_is_run_where_it_is_allowed(qpdsl: Run, program: Path) -> None:
    if sandbox.refusal() is not None:
        pytest.skip("this machine has no walls")
    # The word after the option is the program, not its value.
    assert qpdsl("run", "--allow-code", program, "--set", "problem=x", "--no-greedy").code == Exit.OK
    refused = qpdsl("run", program, "--set", "problem=x")
    assert refused.code == Exit.USAGE
    assert "`--allow-code` allows it" in refused.err


@pytest.mark.usefixtures("no_seccomp")
def test_a_missing_wall_is_refused_before_a_model_is_loaded(qpdsl: Run, program: Path) -> None:
    refused = qpdsl("run", "--allow-code", program, "--set", "problem=x")
    assert refused.code == Exit.USAGE
    assert "the sandbox here lacks: seccomp (switched off)" in refused.err
    assert "--allow-code=unconfined" in refused.err
    assert qpdsl("run", "--allow-code=unconfined", program, "--set", "problem=x", "--no-greedy").code == Exit.OK
    assert qpdsl("explain", program, "--set", "problem=x").code == Exit.OK


def test_another_word_is_refused(qpdsl: Run, program: Path) -> None:
    refused = qpdsl("run", "--allow-code=yes", program, "--set", "problem=x")
    assert refused.code == Exit.USAGE
    assert "unconfined" in refused.err


def test_check_shows_the_walls(qpdsl: Run) -> None:
    shown = qpdsl("check", "--sandbox", "--format", "json")
    found = json.loads(shown.out)
    assert {*found["held"], *found["lacking"]} == {"namespaces", "Landlock", "seccomp"}
    assert shown.code == (Exit.OK if found["refusal"] is None else Exit.USAGE)
    assert all(name in qpdsl("check", "--sandbox").out for name in found["held"])
    assert qpdsl("check", "--sandbox", "greedy").code == Exit.USAGE
    assert qpdsl("check").code == Exit.USAGE


@pytest.mark.usefixtures("no_seccomp")
def test_check_names_what_lacks(qpdsl: Run) -> None:
    shown = qpdsl("check", "--sandbox")
    assert shown.code == Exit.USAGE
    assert "seccomp     lacking: switched off" in shown.out
    assert "--allow-code is refused: the sandbox here lacks: seccomp (switched off)" in shown.out

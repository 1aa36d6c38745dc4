"""A parameter that lists models: stages run with each of them, and a plan changes nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from tests.support.cli import Run

PANEL = """
program panel(problem: text, judges: [model], n: int = 2) -> text {
  chat user=problem
  split n
  each m in judges {
    generate m n=2 max_tokens=4 temperature=1
    score judge(m, "{problem} {text} Right?") as int(1..5) reduce=expected into mark
  }
  keep 3 by mark
  return text(list(text))
}
program panels(problem: text, these: [model] = ["zoo/counting", "zoo/counting-mini"]) -> text {
  call panel(problem, judges=these, n=1) into one
  call panel(problem, judges=["zoo/counting-mini"]) into other
  return "{one} {other}"
}
"""


@pytest.fixture
def panel(tmp_path: Path) -> str:
    path = tmp_path / "panel.qp"
    path.write_text(PANEL, encoding="utf-8")
    return str(path)


def test_stages_run_with_each_model(qpdsl: Run, panel: str) -> None:
    asked = ["run", panel, "--program", "panel", "--set", "problem=How many?", "--rows"]
    listed = "zoo/counting,zoo/counting-mini"
    found = [
        qpdsl(*asked, "--set", f"judges={listed}"),
        qpdsl(*asked, "--set", 'judges=["zoo/counting", "zoo/counting-mini"]', "--plan", "naive"),
        qpdsl(*asked, "--model", f"judges={listed}"),
    ]
    assert {ran.code for ran in found} == {Exit.OK}, found[0].err
    rows = [ran.out[ran.out.index("row 1") :] for ran in found]
    assert len({*rows}) == 1 and rows[0].count("mark  ") == 3
    missing = qpdsl(*asked)
    assert missing.code != Exit.OK and "no model for `judges`, which is a parameter of `panel`" in missing.err


def test_a_call_hands_a_list_of_models_on(qpdsl: Run, panel: str) -> None:
    asked = ["run", panel, "--program", "panels", "--set", "problem=How many?"]
    ran, naive = qpdsl(*asked), qpdsl(*asked, "--plan", "naive")
    assert (ran.code, naive.code) == (Exit.OK, Exit.OK) and ran.out.splitlines()[0] == naive.out.splitlines()[0]

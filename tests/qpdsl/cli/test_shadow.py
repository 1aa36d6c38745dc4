"""`--shadow`, and `--router` where a `generate` leaves its model early, as a user meets them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import qpdsl as qp
from qpdsl.cli.exits import Exit
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.planner.cost.statistics import ROUTERS_FILE
from qpdsl.session.user_cache import folder, read_routers, read_statistics
from tests.support.cli import Run
from tests.support.user_cache import own_cache

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

PROGRAM = """model llm = "zoo/counting"
program p(problem: text) -> text {{
  chat user=problem
  generate llm n=4 temperature=1.2 max_tokens=30 {clause}
  return text
}}
"""
EXITS = "via amortized(0.3, layer=2)"
QUESTION = "problem=Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache(tmp_path / "cache", monkeypatch)


def written(folder: Path, clause: str = EXITS) -> Path:
    file = folder / "p.qp"
    file.write_text(PROGRAM.format(clause=clause), "utf-8")
    return file


def arguments(file: Path) -> tuple[object, ...]:
    return ("run", file, "--set", QUESTION, "--no-greedy", "--json", "--rows")


def test_shadows_change_no_answer_and_what_they_saw_is_told_and_kept(qpdsl: Run, tmp_path: Path) -> None:
    run = arguments(written(tmp_path))
    plain, shadowed = (json.loads(qpdsl(*run, "--shadow", share).out) for share in (0, 1))
    shadow = shadowed.pop("shadow")
    assert shadowed == plain and shadow["shadowed"] > shadow["differed"] > 0
    (loss,) = read_statistics().losses.values()
    assert (loss.shadowed, loss.differed) == (shadow["shadowed"], shadow["differed"])
    said = qpdsl("run", tmp_path / "p.qp", "--set", QUESTION, "--no-greedy", "--shadow", 1).out
    words = f"shadowed {shadow['shadowed']} early draws: {shadow['differed']} would differ, "
    assert words in said and "95% Wilson" in said
    ran = qpdsl("explain", tmp_path / "p.qp", "--analyze", "--set", QUESTION, "--shadow", 1)
    assert words in ran.out


def test_the_next_run_decides_by_what_this_one_learned_and_a_copy_pins_it(qpdsl: Run, tmp_path: Path) -> None:
    run = (*arguments(written(tmp_path)), "--router", "lin_ucb")
    trace = tmp_path / "trace.jsonl"

    def state(text: str) -> str:
        return text.split(", state ")[1].split()[0]

    first = qpdsl(*run, "--trace", trace)
    assert "zoo/counting: router lin_ucb of exit after 2 at 0.3: " in first.err
    assert f"state {state(first.err)}" in trace.read_text("utf-8")
    (key,) = read_routers().states
    assert key.endswith("lin_ucb exits")
    shutil.copy(folder() / ROUTERS_FILE, tmp_path / "pinned.json")
    second = qpdsl(*run)
    assert state(second.err) != state(first.err)
    shutil.copy(tmp_path / "pinned.json", folder() / ROUTERS_FILE)
    again = qpdsl(*run)
    assert (again.out, state(again.err)) == (second.out, state(second.err))


def test_the_arms_are_an_exit_and_none(qpdsl: Run, tmp_path: Path) -> None:
    exits, none = written(tmp_path), tmp_path / "none.qp"
    none.write_text(PROGRAM.format(clause=""), "utf-8")
    full = qpdsl(*arguments(exits), "--router", "fixed:full")
    tried = qpdsl(*arguments(exits), "--router", "fixed:exit")
    assert "full 100%" in full.err and "exit 100%" in tried.err
    rows = [json.loads(ran.out)["rows"] for ran in (full, tried, qpdsl(*arguments(none)), qpdsl(*arguments(exits)))]
    texts = [[row["text"] for row in own] for own in rows]
    assert texts[0] == texts[2] != texts[1] == texts[3]
    assert not read_routers().states


def test_the_program_says_what_latency_weighs(qpdsl: Run, tmp_path: Path) -> None:
    file = written(tmp_path)
    file.write_text(file.read_text("utf-8").replace("-> text", "-> text prefer latency=0.9"), "utf-8")
    qpdsl(*arguments(file), "--router", "lin_ucb")
    ((states,),) = [[*state.values()] for state in read_routers().states.values()]
    assert states["latency"] == 0.9


def test_a_broken_state_is_said_and_left(qpdsl: Run, tmp_path: Path) -> None:
    run = (*arguments(written(tmp_path)), "--router", "lin_ucb")
    qpdsl(*run)
    (key,) = read_routers().states
    broken = {"version": 1, "states": {key: {"exit after 2 at 0.3": {"arms": ["dense"]}}}}
    (folder() / ROUTERS_FILE).write_text(json.dumps(broken), encoding="utf-8")
    ran = qpdsl(*run)
    assert ran.code == Exit.OK and "what a router of early exits of `zoo/counting` learned is not used" in ran.err


@pytest.mark.parametrize(
    ("clause", "options", "why"),
    [
        (EXITS, ("--router", "exponential"), "an early exit has `lin_ucb`"),
        (EXITS, ("--router", "fixed:rows"), "an early exit has `lin_ucb`"),
        (f"{EXITS} draft ngram", ("--router", "lin_ucb"), "write `draft none`"),
        ("", ("--router", "fixed:full"), "leaves a choice to a router"),
        (EXITS, ("--shadow", "2"), "--shadow"),
    ],
)
def test_what_is_not_possible_is_refused(
    qpdsl: Run, tmp_path: Path, clause: str, options: tuple[str, ...], why: str
) -> None:
    ran = qpdsl(*arguments(written(tmp_path, clause)), *options)
    assert ran.code == Exit.USAGE and why in ran.err


def test_a_run_whose_tokens_a_router_decides_is_not_resumed(qpdsl: Run, tmp_path: Path) -> None:
    file, rows, out = written(tmp_path), tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows.write_text(json.dumps({"problem": "How many?"}) + "\n", "utf-8")
    ran = qpdsl("run", file, "--input", rows, "--output", out, "--resume", "--router", "lin_ucb")
    assert ran.code == Exit.USAGE and "depend on what a router knew" in ran.err
    assert "needs `--analyze`" in qpdsl("explain", file, "--shadow", 1).err


def test_in_python_it_is_a_setting_of_a_session() -> None:
    with pytest.raises(qp.ArgumentError, match="`shadow` takes a number from 0 to 1"):
        qp.Session(shadow=1.5)
    with qp.using(shadow=0.5) as session:
        assert session.settings.shadow == 0.5

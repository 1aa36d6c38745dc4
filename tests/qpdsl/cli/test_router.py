"""`--router`, as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.planner.cost.statistics import ROUTERS_FILE
from qpdsl.session.user_cache import folder, read_routers
from tests.support.cli import Run
from tests.support.user_cache import own_cache

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

NOTE = "note=Ben is 40. His tags are tea and rain."
RUN = ("run", "constrained_json", "--set", NOTE, "--no-greedy", "--json")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache(tmp_path / "cache", monkeypatch)


def test_a_router_changes_no_answer_and_what_it_learned_is_kept(qpdsl: Run) -> None:
    plain = json.loads(qpdsl(*RUN, "--no-statistics").out)
    first = qpdsl(*RUN, "--router", "lin_ucb")
    again = qpdsl(*RUN, "--router", "lin_ucb")
    for ran in (first, again):
        assert ran.code == Exit.OK and json.loads(ran.out)["answer"] == plain["answer"]
        assert (
            "zoo/counting: router lin_ucb: " in ran.err
            and "µs a step in the head" in ran.err
            and "of them to choose" in ran.err
        )
    assert len(read_routers().states) == 1
    # Another program, another policy: each learns for itself.
    qpdsl(*RUN, "--router", "thompson")
    assert len(read_routers().states) == 2


def test_a_broken_file_of_states_is_said_and_left(qpdsl: Run) -> None:
    place = folder() / ROUTERS_FILE
    place.write_text('{"version": 1, "states": [', encoding="utf-8")
    ran = qpdsl(*RUN, "--router", "lin_ucb")
    assert ran.code == Exit.OK and f"`{place}` is not used" in ran.err
    # It is written anew, and a state of something else in it is not used either.
    (key,) = read_routers().states
    place.write_text(json.dumps({"version": 1, "states": {key: {"arms": ["dense"]}}}), encoding="utf-8")
    ran = qpdsl(*RUN, "--router", "lin_ucb")
    assert ran.code == Exit.OK and "what a router of `zoo/counting` learned is not used" in ran.err


def test_explain_names_the_router_and_its_shares(qpdsl: Run) -> None:
    assert "learned router" in qpdsl("explain", "constrained_json", "--router", "lin_ucb").out
    assert "learned router" not in qpdsl("explain", "constrained_json", "--router", "none").out
    ran = qpdsl("explain", "constrained_json", "--analyze", "--set", NOTE, "--router", "fixed:rows")
    assert ran.code == Exit.OK and "head rows 100%" in ran.out and "router fixed:rows: rows 100% of " in ran.out
    shown = ("explain", "constrained_json", "--analyze", "--set", NOTE, "--format", "json")
    data = json.loads(qpdsl(*shown, "--router", "exponential").out)
    router = data["measured"]["models"]["zoo/counting"]["router"]
    assert router["policy"] == "exponential" and sum(router["steps"].values()) > 3


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--router", "best"), "`best` is not one of"),
        (("--router", "lin_ucb", "--plan", "naive"), "leaves a choice to a router"),
        (("--router", "lin_ucb", "--disable-rule", "sparse_logits"), "leaves a choice to a router"),
    ],
)
def test_what_is_not_possible_is_refused(qpdsl: Run, options: tuple[str, ...], why: str) -> None:
    ran = qpdsl(*RUN, *options)
    assert ran.code == Exit.USAGE and why in ran.err

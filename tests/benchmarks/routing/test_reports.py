"""Contexts, regrets, traces, and the table that makes a policy cheap."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.routing.features import ALL_FEATURES, FEATURES, Contexts
from benchmarks.routing.policies import make_policy
from benchmarks.routing.regret import cumulative, regret, variation
from benchmarks.routing.route_table import RouteTable
from benchmarks.routing.route_trace import RouteTrace, replay
from qpdsl.executor.routing.linear import LinUCB
from qpdsl.executor.routing.policy import Floats
from tests.support.timing import assert_quick

pytestmark = pytest.mark.unshipped
VOCABULARY = 4096


def test_contexts_are_scaled() -> None:
    contexts = Contexts(VOCABULARY, 8, 100)
    assert contexts.names == FEATURES
    made = contexts.of(allowed=4 * 64, rows=4, margin=0.25, length=50) * np.sqrt(len(FEATURES))
    np.testing.assert_allclose(made, [1.0, 64 / 4096, 0.5, 0.5, 0.25, 0.5])
    batch = Contexts(VOCABULARY, 8, names=("total", "union")).of(allowed=4 * 64, rows=4, union=100) * np.sqrt(2)
    np.testing.assert_allclose(batch, [256 / (8 * 4096), 100 / 4096])


def test_no_context_is_longer_than_one() -> None:
    contexts = Contexts(VOCABULARY, 2, 10, ALL_FEATURES)
    for allowed in (0, 1, VOCABULARY, 9 * VOCABULARY):
        made = contexts.of(allowed, rows=5, margin=7.0, length=10**6, union=10**6)
        assert made.min() >= 0
        assert np.linalg.norm(made) <= 1 + 1e-12
    with pytest.raises(ValueError, match="colour"):
        Contexts(VOCABULARY, names=("colour",))
    with pytest.raises(ValueError, match="at least 1"):
        Contexts(0)


def test_regret_of_a_trace_worked_out_by_hand() -> None:
    losses = np.array([[1.0, 2.0, 9.0], [3.0, 1.0, 9.0], [2.0, 4.0, 9.0], [2.0, 4.0, 9.0]])
    report = regret(losses, [0, 0, 1, 0], charge=0.5)
    assert report.shares == (0.75, 0.25, 0.0)
    assert report.fixed == (2.0, 2.75, 9.0)
    assert (report.best_fixed, report.oracle) == (0, 1.5)
    assert report.loss == 2.5 + 0.5
    # Taken 10 and charged 2: over the best fixed arm's 8, and over the oracle's 6.
    assert (report.static, report.dynamic) == (4.0, 6.0)
    assert report.variation == 2.0 + 3.0 + 0.0
    assert report.over_oracle == 2.0
    assert cumulative(losses, [0, 0, 1, 0], 0.5).tolist() == [0.5, 3.0, 5.5, 6.0]
    assert json.loads(json.dumps(report.as_json()))["best_fixed"] == 0
    assert variation(losses, smooth=2) == 2.5
    for taken in ([], [0, 0, 1], [0, 0, 1, 3]):
        with pytest.raises(ValueError):
            regret(losses, taken)
    with pytest.raises(ValueError, match="known"):
        regret(np.full((1, 2), np.nan), [0])


def trace(steps: int) -> RouteTrace:
    random = np.random.default_rng(0)
    losses = random.random((steps, 2))
    return RouteTrace(("dense", "rows"), ("one", "share"), random.random((steps, 2)), losses, np.zeros(steps, int))


def test_a_trace_comes_back_from_its_file(tmp_path: Path) -> None:
    whole = trace(20)
    partly = RouteTrace(whole.arms, whole.features, whole.contexts, whole.losses.copy(), whole.taken)
    partly.losses[3, 1] = np.nan
    for each, complete in ((whole, True), (partly, False)):
        each.save(tmp_path / "routes.jsonl")
        found = RouteTrace.load(tmp_path / "routes.jsonl")
        assert (found.arms, found.features, found.complete) == (each.arms, each.features, complete)
        np.testing.assert_array_equal(found.contexts, each.contexts)
        np.testing.assert_array_equal(found.losses, each.losses)
        np.testing.assert_array_equal(found.taken, each.taken)
    policy = make_policy("lin_ucb", 2, 2)
    again = replay(make_policy("lin_ucb", 2, 2), found.contexts, whole.losses)
    assert replay(policy, whole.contexts, whole.losses).tolist() == again.tolist()


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        (lambda lines: [], ":1: this is not the head"),
        (lambda lines: ["{}", *lines[1:]], ":1: this is not the head"),
        (lambda lines: [lines[0].replace("routes 1", "routes 9"), *lines[1:]], ":1: .*another format"),
        (lambda lines: [*lines[:2], "no", *lines[2:]], ":3: this is not a step"),
        (lambda lines: [*lines[:2], lines[2].replace('"arm": 0', '"arm": 2'), *lines[3:]], ":3: .*does not fit"),
        (lambda lines: [lines[0], '{"context": [1], "losses": [1, 2], "arm": 0}', ""], ":2: .*does not fit"),
    ],
)
def test_a_broken_trace_is_refused(tmp_path: Path, edit, word: str) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "routes.jsonl"
    trace(4).save(file)
    file.write_text("\n".join(edit(file.read_text(encoding="utf-8").split("\n"))), encoding="utf-8")
    with pytest.raises(ValueError, match=word):
        RouteTrace.load(file)


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "routes.jsonl"
    trace(4).save(file)
    file.write_text(file.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    assert len(RouteTrace.load(file).taken) == 3


def share_context(number: float) -> Floats:
    context: Floats = np.array((1.0, number / VOCABULARY)) / np.sqrt(2)
    return context


def costs(number: float, swapped: bool = False) -> list[float]:
    """Two arms: one costs what it costs, one by number; the first is better from half the vocabulary on."""
    pair = [0.3, 0.05 + 0.5 * number / VOCABULARY]
    return pair[::-1] if swapped else pair


def table(**options: int) -> RouteTable:
    grid = [VOCABULARY * index / 64 for index in range(65)]
    return RouteTable(LinUCB(2, 2, beta=0.05, alpha=0.01), share_context, grid, **options)


def test_a_table_takes_the_arms_of_its_policy_and_seldom_asks() -> None:
    numbers = np.random.default_rng(0).uniform(1, VOCABULARY, 2000).tolist()
    routes = table()
    taken = []
    for number in numbers:
        arm = routes.choose(number)
        routes.learn(arm, costs(number)[arm])
        taken.append(arm)
    losses = np.array([costs(number) for number in numbers])
    assert regret(losses, taken).over_oracle < 1.02
    assert routes.asked < 150
    asked_all = replay(LinUCB(2, 2, beta=0.05, alpha=0.01), np.array([share_context(n) for n in numbers]), losses)
    assert np.mean(np.array(taken[200:]) == asked_all[200:]) > 0.98


def test_a_surprise_closes_the_gaps() -> None:
    numbers = np.random.default_rng(0).uniform(1, VOCABULARY, 1000).tolist()
    asked = []
    for swaps in (False, True):
        routes = table()
        for step, number in enumerate(numbers):
            arm = routes.choose(number)
            routes.learn(arm, costs(number, swaps and step >= 500)[arm])
        asked.append(routes.asked)
    assert asked[1] > 1.3 * asked[0]


def test_a_table_begins_from_what_was_learned() -> None:
    routes, warm = table(first=200), table(first=0)
    for number in np.random.default_rng(0).uniform(1, VOCABULARY, 200).tolist():
        arm = routes.choose(number)
        routes.learn(arm, costs(number)[arm])
    warm.restore(json.loads(json.dumps(routes.state())))
    assert [warm.choose(number) for number in (100.0, 4000.0, 100.0, 4000.0)] == [1, 0, 1, 0]


@pytest.mark.parametrize("grid", [[1.0], [2.0, 1.0]])
def test_a_table_needs_a_grid(grid: list[float]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        RouteTable(LinUCB(2, 2), share_context, grid)


def test_a_look_up_is_quick() -> None:
    """A step of a table is to cost a tenth of one of the policy within."""
    routes = table(first=0)
    numbers = np.random.default_rng(0).uniform(1, VOCABULARY, 4000).tolist()

    def seconds() -> float:
        start = time.thread_time()
        for number in numbers:
            arm = routes.choose(number)
            routes.learn(arm, costs(number)[arm])
        return time.thread_time() - start

    assert_quick(seconds, 4000 * 3e-6)

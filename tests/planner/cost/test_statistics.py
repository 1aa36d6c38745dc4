"""What is remembered of runs, and what estimates make of it."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest

from qpdsl.arguments import with_defaults
from qpdsl.planner.cost.cardinality import cardinalities
from qpdsl.planner.cost.device import nominal
from qpdsl.planner.cost.estimate import estimate_cost
from qpdsl.planner.cost.run_figures import OperatorFigures, RunFigures
from qpdsl.planner.cost.statistics import MAX_PROGRAMS, Statistics, clock_key
from qpdsl.planner.cost.validation import SMALLEST
from qpdsl.planner.optimize.by_cost import choose
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.session.programs import load_program


def plan_of(name: str = "self_consistency", naive: bool = False, **values: int) -> PhysicalPlan:
    return planned(with_defaults(load_program(name, None, None), values), naive=naive)


def figures(problems: int = 2, length: int = 50, failed: int = 0) -> RunFigures:
    counts = {"going": problems, "samples": 32 * problems, "context": 90 * problems, "longest": 80 * problems}
    drawn = OperatorFigures(
        runs=problems,
        rows_in=problems,
        rows_out=32 * problems,
        prompt_tokens=90 * problems,
        sampled_tokens=32 * length * problems,
        counts=counts,
    )
    return RunFigures(problems, failed, problems, 2.0, {"1": drawn}, {}, longest=1.2)


def test_they_survive_being_written() -> None:
    statistics = Statistics()
    statistics.add(plan_of(), figures())
    statistics.add_clock(plan_of(), "cpu float32 1", 2.0)
    assert Statistics.from_text(statistics.to_text()) == statistics


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 0, "programs": {}}', "null", '{"version": 2, "programs": 3}', "[" * 100_000]
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Statistics.from_text(text)


@pytest.mark.parametrize(
    ("path", "damage"),
    [
        (("operators",), []),
        (("operators", "1"), None),
        (("operators", "1", "rows_out"), None),
        (("operators", "1", "rows_out"), "32"),
        (("operators", "1", "sampled_tokens"), math.nan),
        (("operators", "1", "counts"), []),
        (("operators", "1", "counts", "samples"), None),
        (("operators", "1", "most"), "many"),
        (("problems",), 0),
        (("problems",), True),
        (("longest",), math.inf),
        (("longest",), 0),
        (("longest",), 1e-320),
        (("operators", "1", "sampled_tokens"), 1e-320),
        (("operators", "1", "counts", "samples"), 1e-320),
        (("clock",), None),
        (("clock", "cpu float32 1"), 0),
        (("clock", "cpu float32 1"), 10**400),
        (("models",), {"llm": 1}),
        (("values",), {"n": [1]}),
        (("name",), None),
    ],
)
def test_what_is_damaged_within_is_refused(path: tuple[str, ...], damage: object) -> None:
    statistics = Statistics()
    statistics.add(plan_of(), figures())
    statistics.add_clock(plan_of(), "cpu float32 1", 2.0)
    data = json.loads(statistics.to_text())
    (inner,) = data["programs"].values()
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = damage
    with pytest.raises(ValueError):
        Statistics.from_text(json.dumps(data))


def any_figure(rng: random.Random) -> float:
    """A figure that a file may hold: none, the least, the largest, or one between them."""
    return rng.choice([0.0, SMALLEST, 1e30, 10 ** rng.uniform(-3, 6)])


@pytest.mark.parametrize("name", ["beam_search", "best_of_n", "self_consistency"])
def test_whatever_figures_a_file_holds_they_can_be_planned_by(name: str) -> None:
    plan, rng = plan_of(name), random.Random(name)
    counts = figures().operators["1"].counts.keys() | {"texts", "text_tokens", "first_tokens", "steps", "run_ahead"}
    statistics = Statistics()
    statistics.add(plan, figures())
    data = json.loads(statistics.to_text())
    (entry,) = data["programs"].values()
    (means,) = entry["operators"].values()
    for _ in range(40):
        entry["longest"] = max(1.0, any_figure(rng))
        entry["clock"] = {clock_key(nominal()): any_figure(rng) or 1.0}
        for node in everything(plan.ops):
            drawn = {key: any_figure(rng) for key, value in means.items() if isinstance(value, float | int)}
            chosen = {count: any_figure(rng) for count in sorted(counts) if rng.random() < 0.8}
            entry["operators"][node.id] = {**means, **drawn, "counts": chosen, "most": any_figure(rng)}
        read = Statistics.from_text(json.dumps(data))
        assert math.isfinite(estimate_cost(plan, nominal(), read).seconds)
        choose(plan, replace(nominal(), measured=True), read)


def test_what_does_not_come_any_more_fades_away() -> None:
    statistics, plan = Statistics(), plan_of()
    statistics.add(plan, figures(1))
    for _ in range(12):
        statistics.add(plan, figures(10**6, 0))
    found = statistics.of(plan)
    assert found is not None and found.operators["1"].sampled_tokens == 0.0
    assert Statistics.from_text(statistics.to_text()) == statistics


def test_how_problems_differ_is_known_from_all_runs_that_told() -> None:
    """The rows of 30 problems make 2, 4 or 6 rows each, in two runs; statistics of before say nothing of that."""
    statistics, plan = Statistics(), plan_of()
    for rows in ([2, 4, 6] * 4, [2, 4, 6] * 6):
        sums = {"rows_out": sum(rows), "runs": len(rows)}
        drawn = OperatorFigures(**sums, squares={"rows": sum(own**2 for own in rows)})
        statistics.add(plan, RunFigures(len(rows), 0, 1, 1.0, {"1": drawn}, {}))
    found = statistics.of(plan)
    assert found is not None
    own = found.operators["1"]
    assert (own.rows_out, own.deviation(own.rows_out, "rows")) == pytest.approx((4.0, math.sqrt(8 / 3)))
    assert own.deviation(own.tokens, "tokens") is None
    assert Statistics.from_text(statistics.to_text()) == statistics
    data = json.loads(statistics.to_text())
    (entry,) = data["programs"].values()
    del entry["operators"]["1"]["squares"]
    before = Statistics.from_text(json.dumps(data)).of(plan)
    assert before is not None and before.operators["1"].deviation(4.0, "rows") is None


def test_the_clock_of_nominal_figures_is_none_of_measured_ones() -> None:
    statistics, plan = Statistics(), plan_of()
    statistics.add(plan, figures())
    statistics.add_clock(plan, clock_key(nominal()), 2.0)
    measured = replace(nominal(), measured=True)
    assert [estimate_cost(plan, each, statistics).clock for each in (nominal(), measured)] == [2.0, None]
    statistics.forget_clock(clock_key(nominal()))
    assert estimate_cost(plan, nominal(), statistics).clock is None


def test_later_runs_are_mixed_in_by_their_problems() -> None:
    statistics = Statistics()
    statistics.add(plan_of(), figures(2, 50))
    statistics.add(plan_of(), figures(6, 90))
    found = statistics.of(plan_of())
    assert found is not None
    assert found.problems == 8
    assert found.operators["1"].sampled_tokens == pytest.approx(32 * 80)


def test_joined_they_are_as_if_each_run_had_been_added() -> None:
    added, joined = Statistics(), Statistics()
    for name, problems, length in (("self_consistency", 2, 50), ("best_of_n", 40, 70), ("self_consistency", 300, 20)):
        plan, alone = plan_of(name), Statistics()
        for statistics in (added, alone):
            statistics.add(plan, figures(problems, length))
            statistics.add_clock(plan, "cpu float32 1", problems / 10)
        joined.join(alone)
    assert joined == added


def test_every_plan_of_a_program_shares_them() -> None:
    statistics = Statistics()
    statistics.add(plan_of(), figures())
    assert statistics.of(plan_of(naive=True)) is not None
    assert statistics.of(plan_of("best_of_n")) is None


def test_runs_that_failed_as_a_whole_say_nothing() -> None:
    statistics = Statistics()
    statistics.add(plan_of(), figures(2, failed=2))
    assert not statistics.programs


def test_other_values_scale_the_rows_and_keep_the_lengths() -> None:
    statistics = Statistics()
    statistics.add(plan_of(), figures())
    found = cardinalities(plan_of(n=8), statistics)
    assert "other values" in found.source
    assert found.of["1"].samples == pytest.approx(8)
    assert found.of["1"].length == pytest.approx(50)


def test_without_any_there_are_rules_of_thumb() -> None:
    found = cardinalities(plan_of(), Statistics())
    assert found.source == "rules of thumb"
    assert found.of["1"].samples == pytest.approx(32)


def test_they_are_bounded() -> None:
    statistics = Statistics()
    plan = plan_of("greedy")
    for number in range(MAX_PROGRAMS + 3):
        statistics.add(replace(plan, name=f"p{number}"), figures())
    assert len(statistics.programs) == MAX_PROGRAMS
    assert not any(found.name == "p0" for found in statistics.programs.values())


def test_they_hold_no_text() -> None:
    statistics = Statistics()
    lowered = with_defaults(load_program("self_consistency", None, None), {"problem": "a secret"})
    statistics.add(planned(lowered), figures())
    assert "secret" not in json.dumps(statistics.to_text())

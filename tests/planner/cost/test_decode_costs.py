"""What decode plans are expected to cost, and where the planner drafts by itself."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.planner.cost.device import Curve, Device, nominal
from qpdsl.planner.cost.estimate import estimate_cost
from qpdsl.planner.cost.run_figures import OperatorFigures, RunFigures
from qpdsl.planner.cost.statistics import Statistics
from qpdsl.planner.cost.timing import Load
from qpdsl.planner.optimize.by_cost import choice_of
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalPlan
from tests.support.planner.lowered import program_of

TEXT = """model llm = "zoo/counting"
schema P {{ name: text }}
program p(problem: text) -> text {{
  chat user=problem
  generate llm {clause}
}}
"""
ONE = Load(1)


def ruled(clause: str = "", without: tuple[str, ...] = ()) -> PhysicalPlan:
    return optimize(plan(program_of(TEXT.format(clause=clause), "p")), without).plan


def device(flat: bool = True) -> Device:
    """A device on which more rows in a step cost nothing, or as much as the first one."""
    known = nominal()
    profile = known.profile("zoo/counting")
    curve = Curve(((1.0, 0.002), (64.0, 0.002 if flat else 0.128)))
    return replace(known, measured=True, models={"zoo/counting": replace(profile, decode=curve)})


def learned(physical: PhysicalPlan, **counts: int) -> Statistics:
    """Of a run that drew 100 tokens."""
    statistics = Statistics()
    own = OperatorFigures(
        1, 1, 1, 40, 0, 100, counts={"going": 1, "samples": 1, "longest": 100, "context": 40, **counts}
    )
    statistics.add(physical, RunFigures(1, 0, 1, 1.0, {"1": own}, {}))
    return statistics


def drafts_by_cost(statistics: Statistics, on: Device, clause: str = "", without: tuple[str, ...] = ()) -> str:
    chosen = choice_of(ruled(clause, without), on, statistics, ONE, disabled=without).plan
    assert isinstance(chosen.ops[1].strategy, GenerateStrategy)
    return chosen.ops[1].strategy.decode.draft


def test_the_planner_drafts_by_ngrams_only_where_earlier_runs_show_that_they_pay() -> None:
    good = learned(ruled(), would_draws=100, would_rounds=40, would_drafted=120)
    bad = learned(ruled(), would_draws=100, would_rounds=98, would_drafted=300)
    assert drafts_by_cost(Statistics(), device()) == "none"
    assert drafts_by_cost(good, device()) == "ngram"
    assert drafts_by_cost(bad, device()) == "none"
    # Where a step takes as much longer as it has rows, a draft that is half wrong loses.
    assert drafts_by_cost(good, device(flat=False)) == "none"
    assert drafts_by_cost(good, device(), without=("draft_tokens",)) == "none"


def test_what_the_program_says_of_drafts_is_not_turned_back() -> None:
    good = learned(ruled(), would_draws=100, would_rounds=40, would_drafted=120)
    assert drafts_by_cost(good, device(), "draft none") == "none"
    bad = learned(ruled(), ngram_draws=100, ngram_rounds=100, ngram_drafted=800)
    assert drafts_by_cost(bad, device(flat=False), "draft ngram") == "ngram"


def test_drafts_do_not_tell_one_program_from_another() -> None:
    statistics = learned(ruled("draft ngram"), ngram_draws=90, ngram_rounds=30, ngram_drafted=90)
    assert statistics.of(ruled()) is not None
    assert drafts_by_cost(statistics, device()) == "ngram"


def test_forced_tokens_cost_no_step() -> None:
    clause = "as P"
    statistics = learned(ruled(clause), forced=60, draws=40, rounds=40)
    with_jump, without = (
        estimate_cost(physical, device(), statistics, ONE)
        for physical in (ruled(clause), ruled(clause, ("jump_forward",)))
    )
    steps, all_steps = (estimate.models["zoo/counting"].steps for estimate in (with_jump, without))
    assert steps < all_steps * 0.5
    assert with_jump.costs["1"].sampled_tokens == without.costs["1"].sampled_tokens == 100

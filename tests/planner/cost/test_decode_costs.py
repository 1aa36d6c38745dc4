"""What decode plans are expected to cost, and where the planner drafts by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpdsl.planner.cost.device import Curve, Device, nominal
from qpdsl.planner.cost.estimate import estimate_cost
from qpdsl.planner.cost.run_figures import OperatorFigures, RunFigures
from qpdsl.planner.cost.statistics import Statistics
from qpdsl.planner.cost.timing import RunLoad
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
ONE = RunLoad(1)


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


def headed(layers: int = 4) -> Device:
    """A device that knows of the model's head: half of its weights, for 1,024 ids."""
    known = device()
    profile = known.models["zoo/counting"]
    shape = replace(profile.shape, layers=layers, parameters=1000, head_parameters=500, vocabulary=1024)
    return replace(known, models={"zoo/counting": replace(profile, shape=shape)})


def steps_of(clause: str, statistics: Statistics, without: tuple[str, ...] = ()) -> float:
    return estimate_cost(ruled(clause, without), headed(), statistics, ONE).models["zoo/counting"].steps


def test_an_exit_costs_its_layers_and_the_rest_where_draws_go_on() -> None:
    clause = "via amortized(0.5, layer=1)"
    plain = steps_of(clause, learned(ruled(clause), exits=90, refined=10), ("defer_layers",))
    # Of the weights an eighth is the first layer, and a half the head, which a draw that goes on takes twice.
    for refined in (0, 10, 100):
        statistics = learned(ruled(clause), exits=100 - refined, refined=refined)
        share = 0.625 + refined / 100 * 0.875
        assert steps_of(clause, statistics) == pytest.approx(plain / 1.5 * share, rel=0.05)


def test_a_sparse_head_costs_by_how_many_ids_are_allowed() -> None:
    def sparse(ids: int) -> float:
        return steps_of("as P", learned(ruled("as P"), draws=100, rounds=100, **{f"allowed_{ids}": 100}))

    dense = steps_of("as P", learned(ruled("as P"), draws=100, rounds=100, allowed_4=100), ("sparse_logits",))
    assert sparse(4) < sparse(400) < sparse(1000) <= dense
    assert sparse(4) == pytest.approx(dense / 2, rel=0.05)


def test_a_filter_costs_by_what_the_small_model_decided() -> None:
    text = TEXT.replace("schema", 'model slm = "zoo/counting-mini"\nschema').format(clause="via filter(slm, 0.9)")
    filtered = optimize(plan(program_of(text, "p"))).plan

    def large(decided: int) -> float:
        known = learned(filtered, filter_sure=decided, large_draws=100 - decided)
        return estimate_cost(filtered, device(), known, ONE).models["zoo/counting"].steps

    assert large(95) < large(60) < large(5)

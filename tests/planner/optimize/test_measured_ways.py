"""Plans that lose a little: which of the measured ways a program gets, and what is told of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.planner.cost.device import Curve, nominal
from qpdsl.planner.cost.run_figures import OperatorFigures, RunFigures
from qpdsl.planner.cost.statistics import OperatorStatistics, ProgramStatistics, Statistics, fingerprint, seen, wilson
from qpdsl.planner.explain.plan import explain, explain_json
from qpdsl.planner.explain.versions import choice_text
from qpdsl.planner.optimize.by_cost import choice_of, choose
from qpdsl.planner.optimize.measured_ways import MeasuredWay
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.optimize.plan_candidate import Considered, PlanChoice
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import TokenCost
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan, everything
from qpdsl.planner.plan.verify import verify_physical
from tests.support.planner.lowered import program_of

NONE = Statistics()
PROGRAM = """model llm = "zoo/counting"
model slm = "zoo/counting-mini"
program p(problem: text) -> text {head} {{
  chat user=problem
  generate llm n=4 max_tokens=60 {clause}
  return text
}}
"""


def plan_of(head: str = "", clause: str = "") -> PhysicalPlan:
    return planned(program_of(PROGRAM.format(head=head, clause=clause)), ())


def number(value: float) -> ast.Literal:
    return ast.Literal(value, span=Span(0, 0))


def exit_way(margin: float, loss: float | None, cost: float, epsilon: float | None = None) -> MeasuredWay:
    via = ops.Amortized(number(margin), number(2), head="heads", span=Span(0, 0))
    return MeasuredWay(
        "llm", via, loss, TokenCost(large=cost), f"amortized({margin})", f"measured {loss}", "exit", epsilon
    )


WAYS = (exit_way(0.2, 0.08, 0.5), exit_way(0.6, 0.015, 0.7), exit_way(0.9, 0.002, 0.9))


def drawing(plan: PhysicalPlan) -> PhysicalOp:
    return next(node for node in everything(plan.ops) if isinstance(node.op, ops.Generate))


def via_of(plan: PhysicalPlan) -> ops.Filter | ops.Amortized | None:
    op = drawing(plan).op
    assert isinstance(op, ops.Generate)
    return op.via


@pytest.mark.parametrize(
    ("head", "taken"),
    [
        ("", None),
        ("within epsilon(0.5)", None),
        ("within loss(0.001)", None),
        ("within loss(0.005)", WAYS[2]),
        ("within loss(0.02)", WAYS[1]),
        ("within loss(0.1)", WAYS[0]),
    ],
)
def test_the_cheapest_way_that_keeps_to_the_bound_is_taken(head: str, taken: MeasuredWay | None) -> None:
    plan = choice_of(plan_of(head), nominal(), NONE, ways=WAYS).plan
    verify_physical(plan)
    assert via_of(plan) == (None if taken is None else taken.via)
    assert plan.equivalence == ("exact" if taken is None else "lossy")
    strategy = drawing(plan).strategy
    assert isinstance(strategy, GenerateStrategy)
    assert strategy.decode.head == ("dense" if taken is None else "deferred")


def test_what_was_measured_is_told() -> None:
    choice = choice_of(plan_of("within loss(0.02)"), nominal(), NONE, ways=WAYS)
    lines = {line.value: line for line in choice.considered if line.knob.what == "way to decode"}
    assert lines["amortized(0.6)"].chosen and lines["amortized(0.6)"].measured == "measured 0.015"
    assert "0.08 of draws change" in lines["amortized(0.2)"].verdict
    assert not lines["as written"].chosen
    assert "measured 0.08" in choice_text(choice)
    assert "operator 1: measured 0.015" in explain(choice.plan)
    assert explain_json(choice.plan)["measured_ways"] == {"1": "measured 0.015"}
    # Nothing is offered that could not win.
    assert "amortized(0.9)" not in lines


def test_an_exact_program_is_told_what_it_does_without() -> None:
    choice = choice_of(plan_of(), nominal(), NONE, ways=WAYS)
    verdicts = [line.verdict for line in choice.considered if line.knob.what == "way to decode" and not line.chosen]
    assert verdicts == ["outside `within exact`"]


def test_a_loss_weighs_against_time() -> None:
    quick, careful = plan_of("within loss(0.1) prefer latency=0.9"), plan_of("within loss(0.1) prefer latency=0.01")
    assert choose(quick, nominal(), NONE) is not None
    assert via_of(choice_of(quick, nominal(), NONE, ways=WAYS).plan) == WAYS[0].via
    assert via_of(choice_of(careful, nominal(), NONE, ways=WAYS).plan) is None


def test_a_certified_way_is_for_programs_that_permit_an_epsilon() -> None:
    certified = exit_way(0.0, None, 0.6, epsilon=0.4)
    for head, taken in (("within epsilon(0.5)", True), ("within epsilon(0.1)", False), ("within loss(0.5)", False)):
        plan = choice_of(plan_of(head), nominal(), NONE, ways=(certified,)).plan
        assert (via_of(plan) is not None) == taken
    assert choice_of(plan_of("within epsilon(0.5)"), nominal(), NONE, ways=(certified,)).plan.equivalence == "epsilon"


def test_a_way_that_a_program_writes_itself_stays() -> None:
    plan = choice_of(plan_of("within loss(0.1)", "via amortized(0.7)"), nominal(), NONE, ways=WAYS).plan
    via = via_of(plan)
    assert isinstance(via, ops.Amortized) and via.head is None and not plan.ways


def test_what_a_plan_chose_leaves_the_program_the_same() -> None:
    """So its runs count for the same program, and its next plan starts from them."""
    before = plan_of("within loss(0.02)")
    assert fingerprint(choice_of(before, nominal(), NONE, ways=WAYS).plan) == fingerprint(before)


@pytest.mark.parametrize(("accepted", "taken"), [(2999.0, True), (40.0, False)])
def test_a_small_model_that_drafted_well_enough_may_draw_by_itself(accepted: float, taken: bool) -> None:
    plan = plan_of("within loss(0.02)", "draft slm")
    counts = {
        "model_accepted": accepted / 10,
        "model_rejected": 0.1,
        "samples": 4.0,
        "going": 1.0,
        "longest": 60.0,
        "context": 100.0,
    }
    figures = OperatorStatistics(1, 1, 4, 100, 0, 200, counts, 4.0)
    entry = ProgramStatistics("p", dict(plan.models), {}, 10, 1.0, {"1": figures})
    known = Statistics({f"{fingerprint(plan)} {{}}": entry})
    slow, quick = (Curve(((1.0, seconds), (64.0, 2 * seconds))) for seconds in (0.05, 0.001))
    profile = nominal().profile("zoo/counting")
    models = {
        name: replace(profile, decode=curve, prefill=curve)
        for name, curve in (("zoo/counting", slow), ("zoo/counting-mini", quick))
    }
    choice = choice_of(plan, replace(nominal(), models=models), known)
    assert isinstance(via_of(choice.plan), ops.Filter) == taken
    (line,) = [line for line in choice.considered if line.value.startswith("filter")]
    assert "by earlier runs with `draft slm`" in line.measured
    assert fingerprint(choice.plan) == fingerprint(plan)


def test_few_draws_prove_little() -> None:
    assert seen(0, 9) == pytest.approx(0.1) and seen(0, 999) == pytest.approx(0.001)
    assert seen(5, 5) == 1.0


def test_ways_are_for_the_model_that_they_were_measured_for() -> None:
    other = tuple(replace(way, model="slm") for way in WAYS)
    assert via_of(choice_of(plan_of("within loss(0.1)"), nominal(), NONE, ways=other).plan) is None


def ran(plan: PhysicalPlan, **counts: int) -> Statistics:
    """What is known after a run of a plan whose `generate` had these counts."""
    known = Statistics()
    usual = {"samples": 40, "going": 10, "longest": 600, "context": 1000}
    figures = {drawing(plan).id: OperatorFigures(10, 10, 40, 1000, 0, 2000, counts=usual | counts)}
    known.add(plan, RunFigures(10, 0, 1, 1.0, figures, {}))
    return Statistics.from_text(known.to_text())


def ways_told(choice: PlanChoice) -> dict[str, Considered]:
    return {line.value: line for line in choice.considered if line.knob.what == "way to decode"}


def test_a_way_that_lost_more_in_a_run_than_the_program_permits_is_not_taken_again() -> None:
    before = plan_of("within loss(0.02)")
    first = choice_of(before, nominal(), NONE, ways=WAYS).plan
    assert via_of(first) == WAYS[1].via
    known = ran(first, exits=800, refined=200, shadowed=100, differed=30)
    choice = choice_of(before, nominal(), known, ways=WAYS)
    # The next margin is believed until it is seen as well.
    assert via_of(choice.plan) == WAYS[2].via
    refused = ways_told(choice)["amortized(0.6)"]
    seen_then = "30 of 100 shadowed draws differ, 80% are early, by earlier runs (before: measured 0.015)"
    assert refused.measured == f"24.55% of draws change: {seen_then}"
    known = ran(choice.plan, exits=800, refined=200, shadowed=100, differed=30)
    known.losses |= ran(first, exits=800, refined=200, shadowed=100, differed=30).losses
    assert via_of(choice_of(before, nominal(), known, ways=WAYS).plan) is None


def test_shadows_that_agree_with_what_was_measured_join_it() -> None:
    ways = tuple(replace(way, draws=2000.0) for way in WAYS)
    before = plan_of("within loss(0.02)")
    first = choice_of(before, nominal(), NONE, ways=ways).plan
    choice = choice_of(before, nominal(), ran(first, exits=500, refined=500, shadowed=100, differed=2), ways=ways)
    assert via_of(choice.plan) == WAYS[1].via
    # 0.015 * 2,001 - 1 of 2,000, and 2 of the 200 draws for which 100 early ones stand.
    told = ways_told(choice)["amortized(0.6)"].measured
    assert told.startswith(f"{(0.015 * 2001 - 1 + 2 + 1) / 2201:.2%} of draws change: measured 0.015; 2 of 100 ")


@pytest.mark.parametrize(("differed", "taken"), [(0, True), (40, False)])
def test_a_threshold_that_shadows_measured_is_on_offer(differed: int, taken: bool) -> None:
    """The run may have been one of the same program with the filter written into it."""
    written = plan_of("", "via filter(slm, 0.5)")
    counts = {"filter_sure": 900, "large_draws": 100, "shadowed": 450, "differed": 60}
    known = ran(written, **counts, **{"shadowed_0.9": 400, "differed_0.9": differed})
    slow, quick = (Curve(((1.0, seconds), (64.0, 2 * seconds))) for seconds in (0.05, 0.001))
    profile = nominal().profile("zoo/counting")
    models = {
        name: replace(profile, decode=curve, prefill=curve)
        for name, curve in (("zoo/counting", slow), ("zoo/counting-mini", quick))
    }
    choice = choice_of(plan_of("within loss(0.02)", "draft slm"), replace(nominal(), models=models), known)
    via = via_of(choice.plan)
    small = ast.ModelRef("slm", False, span=Span(0, 0))
    expected = ops.Filter(small, number(0.9), "probability", span=Span(0, 0))
    assert (via == expected) == taken or isinstance(via, ops.Filter) == taken
    told = ways_told(choice)
    assert ("filter(slm, 0.9)" in told) == taken and "filter(slm, 0.5)" in told
    assert "60 of 450 shadowed draws differ, 90% are early, by earlier runs" in told["filter(slm, 0.5)"].measured


def test_what_is_forgotten_takes_its_losses_along() -> None:
    known = ran(plan_of("", "via filter(slm, 0.5)"), filter_sure=9, large_draws=1, shadowed=9, differed=1)
    assert len(known.losses) == 1 and not known.forget("other") and len(known.losses) == 1
    assert known.forget("p") == 1 and not known.losses


def test_the_interval_of_a_share() -> None:
    """By the closed form: Wilson, 1927."""
    least, most = wilson(4, 312)
    assert (round(least, 4), round(most, 4)) == (0.005, 0.0325)
    assert wilson(0, 10)[0] == 0.0 and wilson(10, 10)[1] == pytest.approx(1.0) and wilson(0, 0) == (0.0, 1.0)

"""Costs, the parting of memory, and the choice between candidates."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, Literal

import pytest

from qpdsl.planner.cost.demand import Demand
from qpdsl.planner.cost.device import (
    Curve,
    Device,
    KVProfile,
    ModelProfile,
    ModelShape,
    Table,
    device_from_json,
    device_json,
    nominal,
)
from qpdsl.planner.cost.estimate import Estimate, estimate_cost
from qpdsl.planner.cost.statistics import Statistics
from qpdsl.planner.cost.timing import RunLoad
from qpdsl.planner.explain.plan import explain, explain_json
from qpdsl.planner.explain.versions import choice_json, choice_text
from qpdsl.planner.optimize.by_cost import choice_of, choose, of_operators
from qpdsl.planner.optimize.kv_shares import memory_splits
from qpdsl.planner.optimize.optimizer import planned, signature
from qpdsl.planner.optimize.plan_candidate import PlanCandidate, objective, refusal
from qpdsl.planner.plan.ops import InvalidPlan
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalPlan, ScoreStrategy, Tolerance, everything
from qpdsl.planner.plan.verify import verify_physical
from qpdsl.session.programs import load_program, shipped_programs
from tests.support.executor.programs import HEADER, compiled

NONE = Statistics()
SHAPE = ModelShape(1_000_000, 4, 8, 2, 32)
SINGLE = [name for name in shipped_programs() if name != "constrained_json"]


def plan_of(name: str, naive: bool = False, without: tuple[str, ...] = ()) -> PhysicalPlan:
    return planned(load_program(name, None, None), (), without, naive=naive)


def seconds(plan: PhysicalPlan, problems: int = 32, in_flight: int | None = None) -> float:
    return estimate_cost(plan, nominal(), NONE, RunLoad(problems, in_flight)).seconds


@pytest.mark.parametrize("name", SINGLE)
def test_every_shipped_program_has_a_plan_chosen_by_cost(name: str) -> None:
    plan = plan_of(name)
    chosen = choose(plan, nominal(), NONE)
    verify_physical(chosen)
    assert seconds(chosen) <= seconds(plan) * 1.05
    calling = [node for node in everything(chosen.ops) if node.cost is not None and not node.body and not node.arms]
    assert calling and all(
        node.cost.seconds >= 0 and node.cost.cached_tokens <= node.cost.prompt_tokens for node in calling
    )


@pytest.mark.parametrize("name", ["beam_search", "dvts", "best_of_n", "self_consistency"])
def test_rules_are_worth_something(name: str) -> None:
    assert seconds(plan_of(name), in_flight=8) < seconds(plan_of(name, naive=True), in_flight=8)


def test_a_prefix_that_is_not_shared_is_computed_for_every_sample() -> None:
    shared = estimate_cost(plan_of("self_consistency"), nominal(), NONE)
    single = estimate_cost(plan_of("self_consistency", without=("share_prefixes",)), nominal(), NONE)
    assert single.costs["1"].prompt_tokens == pytest.approx(32 * shared.costs["1"].prompt_tokens)


def test_more_problems_at_once_take_less_time() -> None:
    plan = plan_of("greedy")
    assert seconds(plan, 64, 64) < seconds(plan, 64, 8) < seconds(plan, 64, 1)


def test_little_memory_takes_longer() -> None:
    plan = plan_of("beam_search")
    tight = estimate_cost(plan, nominal(), NONE, RunLoad(64, 64, kv_bytes=1 << 20))
    ample = estimate_cost(plan, nominal(), NONE, RunLoad(64, 64, kv_bytes=1 << 32))
    assert tight.seconds > ample.seconds


def test_a_naive_plan_is_left_alone() -> None:
    plan = plan_of("beam_search", naive=True)
    chosen = choose(plan, nominal(), NONE)
    assert (chosen.in_flight, chosen.floor) == (None, 0)


def candidate(equivalence: str, time: float, loss: float | None = 0.0, epsilon: float | None = None) -> PlanCandidate:
    plan = replace(plan_of("greedy"), equivalence=equivalence)  # type: ignore[arg-type]
    return PlanCandidate(plan, time, loss, epsilon)


def test_the_objective_weighs_latency_against_loss() -> None:
    quick, exact = candidate("lossy", 1.0, 0.3), candidate("exact", 2.0, 0.0)
    assert objective(quick, 2.0, 0.9) < objective(exact, 2.0, 0.9)
    assert objective(quick, 2.0, 0.1) > objective(exact, 2.0, 0.1)


@pytest.mark.parametrize(
    ("within", "equivalence", "loss", "epsilon", "allowed"),
    [
        (Tolerance("exact"), "exact", 0.0, None, True),
        (Tolerance("exact"), "epsilon", 0.0, 1e-6, False),
        (Tolerance("epsilon", 0.001), "epsilon", 0.0, 0.0009, True),
        (Tolerance("epsilon", 0.001), "epsilon", 0.0, 0.0011, False),
        (Tolerance("epsilon", 0.001), "epsilon", 0.0, math.nan, False),
        (Tolerance("epsilon", 0.001), "lossy", 0.0, None, False),
        (Tolerance("loss", 0.02), "lossy", 0.01, None, True),
        (Tolerance("loss", 0.02), "lossy", 0.05, None, False),
        (Tolerance("loss", 0.02), "lossy", math.nan, None, False),
        (Tolerance("loss", 0.02), "lossy", None, None, False),
        (Tolerance("loss", 0.02), "epsilon", None, 1e-6, False),
        (Tolerance("loss", 0.02), "epsilon", 0.01, 0.5, True),
        (Tolerance("loss", 0.02), "epsilon", 0.03, 1e-6, False),
        (Tolerance("lossy"), "lossy", 0.0, None, True),
        (Tolerance("lossy"), "lossy", 0.5, None, False),
        (Tolerance("lossy"), "epsilon", 0.0, 1e-6, False),
    ],
)
def test_only_what_the_program_permits_is_a_candidate(
    within: Tolerance, equivalence: str, loss: float | None, epsilon: float | None, allowed: bool
) -> None:
    assert (refusal(candidate(equivalence, 1.0, loss, epsilon), within) is None) is allowed


def test_a_tolerance_in_the_words_of_the_program() -> None:
    tolerances = (Tolerance(), Tolerance("lossy"), Tolerance("epsilon", 1e-3), Tolerance("loss", 0.02))
    assert [str(tolerance) for tolerance in tolerances] == ["exact", "lossy", "epsilon(0.001)", "loss(0.02)"]
    for level, bound in (("epsilon", None), ("exact", 0.1)):
        with pytest.raises(InvalidPlan, match="bound"):
            Tolerance(level, bound)  # type: ignore[arg-type]


def quantized(error: float, loss: float | None = None) -> Device:
    """A device on which steps take a third with keys and values in int8."""
    curve, quick = Curve(((1.0, 0.03), (64.0, 0.06))), Curve(((1.0, 0.01), (64.0, 0.02)))
    kept = {"int8": KVProfile(1056.0, error, quick, quick, loss)}
    profile = ModelProfile(SHAPE, 0.001, 160, curve, curve, kv_types=kept)
    return replace(nominal(), measured=True, models={"zoo/counting": profile, "zoo/counting-prm": profile})


def within(level: Literal["exact", "epsilon", "loss"], bound: float | None = None) -> PhysicalPlan:
    return replace(plan_of("beam_search"), within=Tolerance(level, bound))


def test_eight_bits_are_taken_only_where_the_program_lets_logits_differ_by_as_much() -> None:
    device = quantized(0.02)
    for plan in (within("exact"), within("epsilon", 0.01), within("loss", 0.5)):
        assert choose(plan, device, NONE).kv_type is None
    assert choose(within("epsilon", 0.05), device, NONE).kv_type == "int8"
    loose = choose(within("epsilon", 0.05), device, NONE)
    verify_physical(loose)
    assert loose.equivalence == "epsilon"
    assert {node.equivalence for node in everything(loose.ops) if node.cost and not node.body} == {"epsilon"}
    assert choice_of(within("epsilon", 0.05), device, NONE, kv_types=False).plan.kv_type is None


def test_eight_bits_are_taken_where_few_enough_draws_change() -> None:
    plan = replace(plan_of("self_consistency"), within=Tolerance("loss", 0.02))
    assert choose(plan, quantized(9.0, 0.01), NONE).kv_type == "int8"
    assert choose(plan, quantized(9.0, 0.03), NONE).kv_type is None
    choice = choice_of(plan, quantized(9.0), NONE)
    (refused,) = [line for line in choice.considered if line.value == "int8"]
    assert choice.plan.kv_type is None and "nobody measured what share of draws" in refused.verdict


def test_eight_bits_of_an_error_that_nobody_measured_are_no_candidate() -> None:
    device = quantized(0.02)
    partly = replace(
        device, models={**device.models, "zoo/counting": replace(device.models["zoo/counting"], kv_types={})}
    )
    assert choose(within("epsilon", 0.05), partly, NONE).kv_type is None


def test_a_choice_says_what_it_was_made_from() -> None:
    choice = choice_of(plan_of("beam_search"), quantized(0.02), NONE)
    lines = choice.considered
    knobs = {str(line.knob): [other for other in lines if other.knob == line.knob] for line in lines}
    assert list(knobs) == [
        "generate 1.0: prefixes", "generate 1.0: drafts", "score 1.1: texts", "score 1.1: scores of steps",
        "steps to run ahead", "problems at once", "sequences to keep at work", "keys and values",
    ]  # fmt: skip
    assert all(sum(line.chosen for line in values) == 1 for values in knobs.values())
    # Nothing that is permitted is better than what was chosen by more than is worth a change.
    taken = next(line.cost for line in choice.considered if line.chosen)
    assert all(line.cost > taken * 0.96 or line.verdict.startswith("outside") for line in lines)
    (refused,) = [line for line in lines if line.value == "int8"]
    assert refused.verdict == "outside `within exact`" and refused.cost < taken
    text = choice_text(choice)
    assert "outside `within exact`" in text and "min-max over the models" in text
    assert choice_json(choice)["candidates"][0]["knob"] == "generate 1.0: prefixes"


def test_a_run_that_timed_the_device_changes_less_than_a_profile() -> None:
    steps = Curve(((1.0, 0.01), (64.0, 0.04), (256.0, 0.15)))
    ruled = plan_of("beam_search")
    for count, floor, verdict in ((0, 128, "chosen"), (100, ruled.floor, "less than 20% better")):
        profile = ModelProfile(SHAPE, 0.009, 160, steps, steps, steps=count)
        models = {"zoo/counting": profile, "zoo/counting-prm": profile}
        choice = choice_of(ruled, replace(nominal(), measured=True, models=models), NONE)
        more = next(line for line in choice.considered if line.value == "128" and "sequences" in str(line.knob))
        assert (choice.plan.floor, more.verdict) == (floor, verdict)
        # How far samples run ahead comes to the same here, and stays as it is.
        assert [node.strategy.run_ahead for node in everything(choice.plan.ops) if node.id == "1.0"] == [1]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["beam_search", "sal_dvts"])
def test_how_little_latency_counts_is_no_reason_not_to_look(name: str) -> None:
    """With no loss in any candidate the plan is the same under every λ; only 0 says that time is worth nothing."""
    chosen = [choose(replace(plan_of(name), prefer=weight), quantized(0.02), NONE) for weight in (1.0, 0.001)]
    assert len({(plan.in_flight, plan.floor, signature(plan)) for plan in chosen}) == 1
    idle = replace(plan_of(name), prefer=0.0)
    assert signature(choose(idle, quantized(0.02), NONE)) == signature(idle)


def test_candidates_that_come_to_the_same_say_so() -> None:
    choice = choice_of(plan_of("greedy"), quantized(0.02), NONE)
    taken = next(line.cost for line in choice.considered if line.chosen)
    for line in choice.considered:
        if not line.chosen and line.equivalence == "exact":
            assert (line.verdict == "no better") == (line.cost == taken)
            assert (line.verdict == "") == (line.cost > taken)
    assert any(line.verdict == "no better" for line in choice.considered)


def test_scores_that_are_read_again_leave_nothing_to_choose() -> None:
    text = HEADER + (
        "program p(q: text) -> text {\n chat user=q | generate llm n=4 | score prm reduce=min into a "
        "| score prm reduce=last into b | best by b\n return text\n}"
    )
    plan = compiled(text)
    again = [
        node.id for node in everything(plan.ops) if isinstance(node.strategy, ScoreStrategy) and node.strategy.same_as
    ]
    assert again
    knobs = [str(alternative.knob) for alternative in of_operators(plan, plan)]
    assert any(knob.startswith("score") for knob in knobs) and not any(f"score {again[0]}:" in knob for knob in knobs)


def test_what_does_not_pay_is_taken_back() -> None:
    """Where a step takes as long as it has sequences, nothing is gained by running ahead of the verifier."""
    linear = Curve(((1.0, 0.001), (1000.0, 1.0)))
    profile = ModelProfile(SHAPE, 0.0, 160, linear, linear, read_seconds=0.0)
    device = replace(nominal("cuda"), models={"zoo/counting": profile, "zoo/counting-prm": profile})
    plan = plan_of("beam_search")
    chosen = choose(plan, device, NONE, RunLoad(1))
    assert [
        node.strategy.run_ahead for node in everything(plan.ops) if isinstance(node.strategy, GenerateStrategy)
    ] == [1]
    assert [
        node.strategy.run_ahead for node in everything(chosen.ops) if isinstance(node.strategy, GenerateStrategy)
    ] == [0]
    # What EXPLAIN says of the rules is what is left of them.
    assert "speculative_expansion" in plan.rules and "speculative_expansion" not in chosen.rules
    assert chosen.rules == tuple(rule for rule in plan.rules if rule != "speculative_expansion")
    assert not any("speculative_expansion" in node.rules for node in everything(chosen.ops))
    assert "6 rules   chosen by cost" in explain(chosen) and "chosen by cost" not in explain(plan)
    assert explain_json(chosen)["chosen_by_cost"] and not explain_json(plan)["chosen_by_cost"]
    # That the cost leaves a plan as it is was chosen too.
    again = choose(replace(chosen, chosen=False), device, NONE, RunLoad(1))
    assert again == chosen
    assert choice_of(plan, device, NONE).levels[0].shares == {"zoo/counting": 0.5, "zoo/counting-prm": 0.5}


def two_models(memory_of_a: float, memory_of_b: float) -> Device:
    """Models whose throughput grows with their memory up to a point each."""

    def profile(needs: float) -> ModelProfile:
        kv = tuple(int(1000 * part) for part in (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0))
        rates = tuple((min(tokens / needs, 1.0) * 1000, min(tokens / needs, 1.0) * 2000) for tokens in kv)
        table = Table(kv, (1, 64), rates)
        curve = Curve(((1.0, 0.01),))
        return ModelProfile(SHAPE, 0.001, 160, curve, curve, table, table)

    return replace(nominal(), models={"a": profile(memory_of_a), "b": profile(memory_of_b)})


def demand(model: str, sampled: float) -> Demand:
    return Demand(model, model, 10, 0, sampled, 10, 1, 4, 100)


def test_memory_goes_to_the_model_that_sets_the_pace() -> None:
    load = RunLoad(kv_bytes=1000 * SHAPE.kv_bytes)
    demands = [demand("a", 100), demand("b", 100)]
    even, *_ = memory_splits(demands, two_models(500, 500), load)
    uneven, *_ = memory_splits(demands, two_models(750, 250), load)
    assert even.shares == {"a": 0.5, "b": 0.5}
    assert uneven.shares == {"a": 0.75, "b": 0.25}
    assert uneven.rate == pytest.approx(20.0)


def test_min_max_is_what_trying_everything_finds() -> None:
    device, load = two_models(900, 300), RunLoad(kv_bytes=1000 * SHAPE.kv_bytes)
    found, *others = memory_splits([demand("a", 50), demand("b", 200)], device, load)
    best = max(
        min(
            device.models["a"].generate.at(1000 * level / 8, batch) / 50,  # type: ignore[union-attr]
            device.models["b"].generate.at(1000 * (8 - level) / 8, batch) / 200,  # type: ignore[union-attr]
        )
        for level in range(1, 8)
        for batch in (1, 4, 16, 32, 64, 128)
    )
    assert found.rate == pytest.approx(best, rel=0.01)
    assert all(other.rate <= found.rate * 1.001 for other in others)


def test_a_device_survives_being_written() -> None:
    device = two_models(500, 500)
    assert device_from_json(device_json(device)) == device
    with pytest.raises(ValueError, match="another version"):
        device_from_json({**device_json(device), "version": 0})


@pytest.mark.parametrize(
    ("path", "damage"),
    [
        (("models",), []),
        (("models",), None),
        (("models", "a"), None),
        (("models", "a", "kv_types"), None),
        (("models", "a", "kv_types", "int8", "epsilon"), math.nan),
        (("models", "a", "kv_types", "int8", "epsilon"), "0"),
        (("models", "a", "decode", "points"), []),
        (("models", "a", "decode", "points"), [[1, 2, 3]]),
        (("models", "a", "decode", "points"), [[1, 2], [1, 2]]),
        (("models", "a", "decode", "points"), 3),
        (("models", "a", "shape", "layers"), 0),
        (("models", "a", "shape"), {}),
        (("models", "a", "context"), None),
        (("models", "a", "read_seconds"), math.inf),
        (("models", "a", "generate", "rates"), [[1.0]]),
        (("models", "a", "generate", "batches"), []),
        (("bandwidth",), 0),
        (("bandwidth",), 10**400),
        (("peak",), True),
        (("row_seconds",), -1),
        (("threads",), 1.5),
        (("dtype",), None),
        (("measured",), None),
    ],
)
def test_a_damaged_device_is_refused(path: tuple[str, ...], damage: object) -> None:
    device = two_models(500, 500)
    kept = {"int8": KVProfile(1056.0, 0.1, Curve(((1.0, 0.01),)), Curve(((1.0, 0.01),)))}
    device = device.with_model("a", replace(device.models["a"], kv_types=kept))
    data: Any = json.loads(json.dumps(device_json(device)))
    assert device_from_json(data) == device
    inner = data
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = damage
    with pytest.raises(ValueError, match="no profile of a device"):
        device_from_json(data)


def test_curves_are_straight_between_and_beyond_their_points() -> None:
    curve = Curve(((1.0, 2.0), (3.0, 4.0), (5.0, 10.0)))
    assert [curve.at(size) for size in (0.5, 1, 2, 4, 7)] == [2.0, 2.0, 3.0, 7.0, 16.0]


def test_an_estimate_says_what_it_goes_by() -> None:
    found: Estimate = estimate_cost(plan_of("greedy"), nominal(), NONE)
    assert (found.source, found.clock, found.device) == ("rules of thumb", None, "nominal")

"""From a program and its settings to a plan: bound to its values, under a budget, checked."""

from __future__ import annotations

from typing import Any

import pytest

import qpdsl as qp
from qpdsl.planner.plan.budget_policy import BudgetPolicy
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.strategies.written_strategies import strategies_of
from qpdsl.runs.store.fingerprint import operators
from qpdsl.session.prepare import PlanUse, Prepared, ask_servers, bind_program, prepare
from qpdsl.session.settings import Settings

_ROUNDS = 'chat user=q | repeat %s { generate "zoo/counting" | let a = 1 } | return %s'


def prepared(use: PlanUse | None = None, **settings: Any) -> Prepared:
    given = Settings(**settings)
    return prepare(bind_program(given), given, use or PlanUse())


def test_values_are_bound() -> None:
    found = prepared(target="best_of_n", assigned=("n=3",))
    assert found.values == {"n": 3} and found.plan.values()["n"] == 3


def test_rules_and_none() -> None:
    naive, ruled = prepared(target="beam_search", plan_kind="naive"), prepared(target="beam_search")
    assert operators(naive.plan.ops) == operators(ruled.optimized.naive.ops)
    assert ruled.plan.ops != ruled.optimized.naive.ops and str(naive.planning) == "naive"
    with pytest.raises(qp.UsageError, match="uses no rule"):
        prepared(target="beam_search", plan_kind="naive", disabled=("sparse_logits",))


def test_greedy_decoding_is_planned_beside() -> None:
    assert len(prepared(target="beam_search").plans) == 1
    both = prepared(PlanUse(greedy=True), target="beam_search")
    assert len(both.plans) == 2 and {*both.models} == {*both.plans[0].models, *both.plans[1].models}


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"target": "best_of_n", "assigned": ("n=0",)}, qp.ArgumentError, "`n` takes a whole number"),
        ({"target": "greedy", "models": ("llm=./nowhere",)}, qp.ModelError, "there is no folder"),
        ({"target": "greedy", "router": "lin_ucb"}, qp.UsageError, "leaves a choice to a router"),
        ({"target": "greedy", "budget": "tokens=3"}, qp.UsageError, "leaves nothing to a budget"),
        ({"target": "compute_optimal", "budget": "tokens=0"}, qp.UsageError, "tokens is a number over 0"),
        ({"target": "compute_optimal", "budget": "hours=3"}, qp.UsageError, "a budget counts no `hours`"),
        ({"pipeline": _ROUNDS % ("0", "a")}, qp.ArgumentError, "0 rounds of `repeat 0` make no `a`, which `re"),
        ({"pipeline": _ROUNDS % ("0", "text")}, qp.ArgumentError, "make no `text`, which `return`"),
        ({"pipeline": _ROUNDS % ("0 gather", "q")}, qp.ArgumentError, "leave no row to return"),
        ({"pipeline": 'chat user=q | generate "zoo/counting" | score passes(text)'}, qp.UsageError, "runs code"),
    ],
)
def test_what_cannot_run_is_refused(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refused:
        prepared(**settings)
    assert message in str(refused.value)


def test_a_policy_decides_what_is_open() -> None:
    def first(program: LogicalProgram, values: object) -> BudgetPolicy:
        assert program.budget is not None
        return BudgetPolicy(
            strategies_of(program), 0, {}, program.budget.unit, program.budget.amount, None, None, "nothing"
        )

    settings = Settings(target="compute_optimal", budget="tokens=300")
    found = prepare(bind_program(settings), settings, policy=first)
    assert found.plan.policy is not None and found.plan.policy.budget == 300
    with pytest.raises(qp.UsageError, match="needs a budget"):
        prepare(bind_program(settings), settings)


def test_settings_of_other_models_are_refused() -> None:
    bound = [bind_program(Settings(target="greedy"))]
    with pytest.raises(qp.UsageError, match="`--server-timeout` applies to remote models only"):
        ask_servers(bound, Settings(server_timeout=3), print)
    assert ask_servers(bound, Settings(threads=1), print) == {}

"""The plan of a program under a budget, and the policy in it as people read it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from qpdsl.planner.optimize.budgeted_plan import budgeted
from qpdsl.planner.optimize.optimizer import Optimized, optimize, signature
from qpdsl.planner.plan.budget_policy import BudgetPolicy, Turn, policy_lines
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import GenerateStrategy, VoteStrategy, everything
from qpdsl.planner.plan.verify import verify_physical
from qpdsl.planner.strategies.written_strategies import fixed, reached_strategies, strategies_of
from qpdsl.session.programs import load_program
from tests.support.planner.lowered import program_of

TEXT = r"""
model llm = "zoo/counting"

program p(problem: text) -> text within budget(tokens=2000) {
  chat user=problem
  generate llm n=auto(2, 4, 8) temperature=0.8
  extract answer = /(\d+)/
  vote answer
}
"""
PROGRAM = program_of(TEXT)
WAYS = strategies_of(PROGRAM)


def planned(program: LogicalProgram, reads: tuple[str, ...] | None, sure: bool) -> Optimized:
    return optimize(plan(program, reads, support=sure))


def policy(first: int, turns: dict[int, Turn]) -> BudgetPolicy:
    return BudgetPolicy(WAYS, first, turns, "tokens", 2000.0, None, None, "nothing was learned yet")


def test_ways_that_no_turn_leads_to_have_no_chain() -> None:
    assert reached_strategies(policy(0, {0: Turn((0.5,), (2, None)), 1: Turn((), (2,))})) == (WAYS[0], WAYS[2])
    assert reached_strategies(policy(1, {0: Turn((), (2,))})) == (WAYS[1],)


def test_each_chain_is_the_plan_of_its_way_with_ids_of_its_own() -> None:
    made = budgeted(PROGRAM, (), policy(0, {0: Turn((0.5,), (2, None))}), planned).plan
    verify_physical(made)
    for number, (way, sure) in enumerate(((WAYS[0], True), (WAYS[2], False))):
        own = planned(fixed(PROGRAM, way), (), sure).plan
        nodes, others = list(everything(made.ops[0].arms[number])), list(everything(own.ops))
        assert [node.id for node in nodes] == [f"0.{number}.{node.id}" for node in others]
        assert [(node.op, node.rules, node.rows) for node in nodes] == [(n.op, n.rules, n.rows) for n in others]


def test_a_vote_ends_early_only_where_nobody_asks_how_sure_it_was() -> None:
    made = budgeted(PROGRAM, (), policy(0, {0: Turn((0.5,), (2, None))}), planned).plan
    votes = [node.strategy for node in everything(made.ops) if isinstance(node.strategy, VoteStrategy)]
    assert [vote.decided for vote in votes] == [False, True]
    (leading,) = [
        node.strategy.vote
        for node in everything(made.ops)
        if isinstance(node.strategy, GenerateStrategy) and node.strategy.vote is not None
    ]
    assert leading == "0.1.3"


def test_the_steps_to_the_plan_lead_to_it() -> None:
    optimized = budgeted(PROGRAM, (), policy(0, {0: Turn((0.5,), (2, None))}), planned)
    assert optimized.changes[-1].plan == optimized.plan
    plans = [optimized.naive, *(change.plan for change in optimized.changes)]
    assert all(signature(before) != signature(after) for before, after in pairwise(plans))


def test_a_policy_in_words() -> None:
    own = BudgetPolicy(
        WAYS,
        0,
        {0: Turn((0.25, 0.5, 0.9), (2, 2, 1, None)), 1: Turn((), (2,))},
        "tokens",
        2000.0,
        0.762,
        490.4,
        "500 problems of `counting-500`",
        (0.723, 0.796),
    )
    assert policy_lines(own) == [
        "budget: 2,000 tokens a problem, on average over problems",
        "first n=2; support < 0.5: n=8; support < 0.9: n=4; else end",
        "after n=4; then n=8",
        "expected: 76.2% right (72.3% to 79.6%) at 490.4 tokens a problem; learned from 500 problems of `counting-500`",
    ]
    assert policy_lines(policy(1, {}))[1:] == ["first n=4", "nothing was learned yet"]


def test_a_policy_survives_its_json() -> None:
    own = policy(0, {0: Turn((0.5,), (2, None))})
    assert BudgetPolicy.from_json(own.to_json()) == own


@pytest.mark.parametrize("decided", ["", " decided=0.95"])
def test_support_keeps_the_rows_that_a_vote_counts(decided: str) -> None:
    text = TEXT.replace("n=auto(2, 4, 8)", "n=8").replace(" within budget(tokens=2000)", "")
    program = program_of(text.replace("vote answer", f"vote answer{decided}"))
    votes = [
        node.strategy
        for support in (False, True)
        for node in optimize(plan(program, (), support=support)).plan.ops
        if isinstance(node.strategy, VoteStrategy)
    ]
    waves = bool(decided)
    assert votes == [VoteStrategy(True, waves), VoteStrategy(waves, waves, waves)]


def test_shipped_programs_have_no_ways() -> None:
    assert not load_program("self_consistency", None, None).ways

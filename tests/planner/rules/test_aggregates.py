"""An aggregate looks at all rows of its stage, so rules that go row by row leave it alone."""

from __future__ import annotations

import pytest

from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.naive import greedy_of, plan
from qpdsl.planner.plan.physical import PhysicalPlan, VoteStrategy, everything
from tests.support.planner.lowered import program_of
from tests.support.planner.scripted_runs import ENVIRONMENT
from tests.support.planner.searches import HEADER


def text(stages: str) -> str:
    return f"{HEADER}program p(problem: text, n: int = 8) -> text {{\n  chat user=problem\n{stages}\n}}\n"


def ruled(stages: str) -> PhysicalPlan:
    return optimize(plan(program_of(text(stages), "p", ENVIRONMENT), ())).plan


@pytest.mark.parametrize(
    ("between", "decided"),
    [
        ("where a != none", True),
        ("let b = a | where b != none", True),
        ("where count(a per a) > 1", False),
        ("let b = first(a) | where a == b", False),
        ("score prm given text(count()) into s", False),
        ("where rank(tokens) == 1", False),
        ("let b = [a][number() - 1] | where a == b", False),
        ("let b = max([tokens, 1]) | where b > 1", False),
        ("let b = [a][0] | where a == b", True),
    ],
)
def test_a_vote_is_decided_early_where_each_row_is_looked_at_by_itself(between: str, decided: bool) -> None:
    weight = " weight=s" if "score" in between else ""
    chain = ruled(f"  generate llm n=8\n  extract a = /\\d+/\n  {between}\n  vote a{weight}").ops
    assert any(isinstance(node.strategy, VoteStrategy) and node.strategy.decided for node in chain) == decided


def test_a_column_that_nobody_reads_is_not_worked_out() -> None:
    stages = "  generate llm n=8\n  let a = mean(tokens)\n  let b = a + 1\n  let c = tokens - mean(tokens)\n  best by c"
    lets = [node.op.column.id for node in everything(ruled(stages).ops) if isinstance(node.op, ops.Let)]
    assert lets == ["c"]


def test_scores_of_other_rows_are_not_the_same_scores() -> None:
    for given, merged in (("problem", True), ("text(count())", False)):
        scored = [f"score prm given {given} into {column}" for column in "ab"]
        chain = ruled("\n".join(["generate llm n=8", scored[0], "where a > 0", scored[1], "best by a + b"])).ops
        scores = [node for node in everything(chain) if isinstance(node.op, ops.StepScore)]
        assert [getattr(node.strategy, "same_as", None) is not None for node in scores] == [False, merged]


def test_greedy_decoding_is_asked_what_was_worked_out_and_not_what_was_scored() -> None:
    stages = '  let m = n + 1\n  chat user="{m} ways"\n  generate llm n=8\n  score prm given problem\n'
    stages += "  let over = score - mean(score)\n  best by over"
    greedy = greedy_of(program_of(text(stages), "p", ENVIRONMENT))
    assert greedy is not None
    chain = [node.op for node in greedy.plan]
    assert [op.column.id for op in chain if isinstance(op, ops.Let)] == ["m"]

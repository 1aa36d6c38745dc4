"""Samples that can no longer be kept are given up, by any key that falls; what is kept is what every plan keeps."""

from __future__ import annotations

from collections import Counter

import pytest

from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan, VoteStrategy
from tests.support.planner.lowered import program_of
from tests.support.planner.scripted_runs import ENVIRONMENT, result_of
from tests.support.planner.searches import HEADER

SCORED = "score prm reduce=min given problem"
# A choice, and whether samples can be given up before it.
CHOICES = {
    "keep 2 by -tokens": True,
    "keep 2 by -tokens - 3": True,
    "keep 1 by min(-2 * tokens, -7)": True,
    "keep 2 by logprob": True,
    "score logprob into l | best by 2.0 * l - tokens": True,
    "let cost = tokens * 3 | best by -cost": True,
    f"{SCORED} | best by score": True,
    f"{SCORED} | keep 3 by score": True,
    "score prm reduce=prod given problem into s | keep 2 by log(s)": True,
    f"{SCORED} | where score > 0.2 | best by score - 0.01 * tokens": True,
    f"{SCORED} | vote a weight=score": False,
    "score logprob into l | vote a weight=exp(l)": False,
    "keep 1 by tokens": False,
    "keep 2 by -tokens + count()": False,
    "keep 1 by -tokens per a": False,
    "score prm given problem | best by score": False,
    "score orm reduce=min given problem | best by score": True,
}


def plans(choice: str) -> tuple[PhysicalPlan, PhysicalPlan, PhysicalPlan]:
    """The naive plan, that of all rules, and that without scores ahead."""
    text = "chat user=problem | generate llm n=8 temperature=1.0 max_tokens=24 | extract a = /[0-9]/"
    program = program_of(f"{HEADER}program p(problem: text) -> text {{\n {text} | {choice}\n}}", "p", ENVIRONMENT)
    naive = plan(program, ("a",) if "weight=" in choice else None)
    return naive, optimize(naive).plan, optimize(naive, ["score_ahead"]).plan


@pytest.mark.parametrize("choice", CHOICES)
def test_what_is_kept_is_what_every_plan_keeps(choice: str) -> None:
    saved: Counter[str] = Counter()
    naive, ruled, unscored = plans(choice)
    for seed in range(12):
        expected = result_of(naive, seed, 0)
        for other in (ruled, unscored):
            result = result_of(other, seed, seed)
            assert (result.value, result.error) == (expected.value, expected.error)
            if "weight=" not in choice:
                assert [row.columns for row in result.rows] == [row.columns for row in expected.rows]
                assert [row.path for row in result.rows] == [row.path for row in expected.rows]
            assert result.sampled_tokens <= expected.sampled_tokens
            saved["given up"] += result.counts.get("given_up", 0)
    decided = any(isinstance(node.strategy, VoteStrategy) and node.strategy.decided for node in ruled.ops)
    assert (decided and saved["given up"] > 0) or not CHOICES[choice]


def test_steps_are_scored_as_they_are_drawn_where_that_tells_something() -> None:
    for choice in CHOICES:
        ahead = [node.op for node in plans(choice)[1].ops if getattr(node.strategy, "ahead", False)]
        assert bool(ahead) == ("reduce=" in choice), choice

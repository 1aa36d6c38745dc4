"""Votes of samples that think: decided by answers, the same under every plan; what is broken off is counted."""

from __future__ import annotations

import pytest

from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan as naive_plan
from qpdsl.planner.plan.physical import PhysicalPlan, VoteStrategy, everything
from tests.support.executor.programs import compiled, run_all, texts

# All answers are the same, so that the vote is decided while half of the samples are in their longer thoughts.
AGREED = "split 4", "generate llm n=2 think=2 + 10 * group as /1/"
OPEN = "generate llm n=8 think=24 temperature=0.7"
EXTRACT = r"extract answer = /The answer is (-?\d+)/"


def plan(*stages: str) -> PhysicalPlan:
    body = "\n ".join(("chat user=problem", *stages))
    head = 'model llm = "zoo/counting-thinker"\nprogram p(problem: text) -> text {\n '
    return naive_plan(lower(parse_file(Source("test.qp", f"{head}{body}\n}}"))), reads=())


def test_a_vote_breaks_off_thoughts_that_can_no_longer_change_it() -> None:
    naive = plan(*AGREED, "vote text")
    rules = optimize(naive).plan
    assert any(isinstance(node.strategy, VoteStrategy) and node.strategy.decided for node in everything(rules.ops))
    given = [{"problem": texts(1)[0]}]
    (whole,), (early,) = run_all(naive, given), run_all(rules, given)
    assert whole.value == early.value == "1"
    assert whole.rows[0].columns["thought"] == early.rows[0].columns["thought"]
    assert early.counts["thoughts_given_up"] == early.counts["given_up"] == 4
    assert 4 * 12 <= early.counts["thought_tokens_given_up"] < 4 * 22
    assert early.counts["thought_tokens"] < whole.counts["thought_tokens"] < whole.sampled_tokens
    assert early.counts["thought_tokens"] < early.sampled_tokens < whole.sampled_tokens
    assert "thoughts_given_up" not in whole.counts


def test_a_sure_vote_begins_no_further_thoughts() -> None:
    naive = plan(*AGREED, "vote text decided=0.95")
    given = [{"problem": texts(1)[0]}]
    (whole,), (early,) = run_all(naive, given), run_all(optimize(naive).plan, given)
    assert whole.value == early.value == "1" and early.counts["given_up"] == 4
    assert early.counts["thought_tokens"] < whole.counts["thought_tokens"]
    assert not early.counts.get("thoughts_given_up")


@pytest.mark.parametrize("vote", ["vote answer", "vote answer decided=0.9", "vote answer equal=number"])
def test_answers_are_the_same_under_every_plan(vote: str) -> None:
    naive = plan(OPEN, EXTRACT, vote)
    given = [{"problem": text} for text in texts(4)]
    expected = [(result.value, result.rows[0].columns["thought"]) for result in run_all(naive, given)]
    for disabled in ((), ("decided_vote",), ("stop_when_matched",)):
        found = run_all(optimize(naive, disabled).plan, given)
        assert [(result.value, result.rows[0].columns["thought"]) for result in found] == expected


def test_models_that_do_not_think_count_no_thoughts() -> None:
    naive = compiled(
        'model llm = "zoo/counting"\nprogram p(problem: text) -> text {\n chat user=problem\n generate llm n=2\n}'
    )
    (result,) = run_all(optimize(naive).plan, [{"problem": texts(1)[0]}])
    assert not [name for name in result.counts if "thought" in name]

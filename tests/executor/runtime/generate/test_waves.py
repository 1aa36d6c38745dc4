"""A vote `decided=` looks at the first samples that make it sure, whatever was begun, and few more are begun."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpdsl.executor.runtime.generate.decided_vote import votes_to_decide
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan, VoteStrategy
from qpdsl.planner.plan.rule import with_strategies
from tests.support.executor import scripted_engine
from tests.support.executor.programs import compiled
from tests.support.planner.lowered import program_of
from tests.support.planner.scripted_runs import ENVIRONMENT, result_of
from tests.support.planner.searches import HEADER

BODY = """program p(problem: text) -> text {
  chat user=problem
  split 2
  generate llm n=12 temperature=1.0 max_tokens=12
  extract a = /[0-9]/
  WHERE
  vote a decided=SURE
}"""


def plans(sure: float, where: str) -> tuple[PhysicalPlan, PhysicalPlan, PhysicalPlan]:
    """The naive plan, that in waves, and that which begins all samples at once."""
    text = HEADER + BODY.replace("SURE", str(sure)).replace("WHERE", where)
    naive = plan(program_of(text, "p", ENVIRONMENT))
    waves = optimize(naive).plan
    (vote,) = (node for node in waves.ops if isinstance(node.strategy, VoteStrategy))
    assert vote.strategy == VoteStrategy(decided=True, waves=True)
    return naive, waves, with_strategies(waves, {vote.id: VoteStrategy(decided=True)})


@pytest.mark.parametrize("where", ["where true or finished", "where a != none"])
@pytest.mark.parametrize("sure", [0.6, 0.8, 0.95])
def test_every_plan_decides_at_the_same_sample(sure: float, where: str) -> None:
    saved = 0
    naive, *others = plans(sure, where)
    for seed in range(12):
        expected = result_of(naive, seed, 0)
        for other in others:
            for order in range(2):
                result = result_of(replace(other, floor=0), seed, order)
                assert (result.value, result.error) == (expected.value, expected.error)
                assert [row.path for row in result.rows] == [row.path for row in expected.rows]
                saved += result.counts["given_up"]
    assert saved > 0


def test_in_waves_fewer_samples_are_begun() -> None:
    naive, waves, at_once = plans(0.8, "where a != none")
    drawn = [sum(result_of(own, seed, 0).sampled_tokens for seed in range(12)) for own in (naive, at_once, waves)]
    assert drawn[2] < drawn[1] <= drawn[0]


def test_a_wave_is_what_could_decide_the_vote() -> None:
    assert votes_to_decide(0, 0, 0.95) == 4
    assert votes_to_decide(3, 0, 0.95) == 1
    assert votes_to_decide(2, 2, 0.95) == 6


def test_what_was_begun_beside_rows_that_decide_at_once_is_given_up() -> None:
    drawn: list[int] = []

    def script(prompt: str, key: int) -> str:
        drawn.append(key)
        return "7\n" if len(drawn) == 4 else "7"

    body = """program p(problem: text) -> text {
      chat user=problem
      generate llm n=4 stop="\\n" temperature=1.0 max_tokens=12
      generate llm n=2 temperature=1.0 max_tokens=12
      extract a = /[0-9]/
      vote a
    }"""
    result, _ = scripted_engine.result_of(optimize(compiled(f'model llm = "zoo/counting"\n{body}')).plan, script)
    assert result.value == "7" and len(drawn) == 4
    assert (result.counts["given_up"], result.counts["samples"]) == (2, 4)

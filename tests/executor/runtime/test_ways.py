"""Programs under a budget: each way gives what its own program gives, and a policy decides by the row alone."""

from __future__ import annotations

import pytest

from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.planner.optimize.budgeted_plan import budgeted
from qpdsl.planner.optimize.optimizer import Optimized, optimize
from qpdsl.planner.plan.budget_policy import BudgetPolicy, Turn
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.rules import RULES
from qpdsl.planner.strategies.written_strategies import fixed, strategies_of
from tests.support.planner.lowered import program_of
from tests.support.planner.scripted_runs import ENVIRONMENT, result_of

TEXT = r"""
model llm = "r"
model prm = "b"

program sampled(problem: text, n: int) -> text {
  chat user=problem
  generate llm n=n temperature=0.8
  extract answer = /(\d+)/
  vote answer
}

program searched(problem: text, width: int = auto(2, 3)) -> text within budget(tokens=100) {
  strategy {
    {
      chat user=problem
      generate llm n=2 temperature=0.8
      extract answer = /no such (text)/
    }
    or { call sampled(problem, n=auto(2, 6)) }
    or {
      chat user=problem
      split width
      repeat 3 until all(finished) {
        generate llm n=auto(2, 3) stop="\n\n" temperature=0.8
        score prm
        keep 1 by score per group
      }
      extract answer = /(\d+)/
      vote answer weight=score
    }
    or {
      chat user=problem
      generate llm n=4 temperature=0.8
      score prm into rating
      best by rating
      extract answer = /(\d+)/
    }
  }
  return answer
}
"""
PROGRAM = program_of(TEXT, "searched", ENVIRONMENT)
WAYS = strategies_of(PROGRAM)
FAILING, NARROW, WIDE, SEARCH, BEST = (
    [way.name for way in WAYS].index(name)
    for name in ("arm 1", "sampled(n=2)", "sampled(n=6)", "arm 3 (width=3, n=3)", "arm 4")
)
NO_RULES = [rule.name for rule in RULES]
SEEDS = range(3)


def planned(program: LogicalProgram, *, naive: bool = False) -> Optimized:
    return optimize(plan(program, (), support=True), NO_RULES if naive else ())


def by_policy(first: int, turns: dict[int, Turn] | None = None, *, naive: bool = False) -> PhysicalPlan:
    policy = BudgetPolicy(WAYS, first, turns or {}, "tokens", 100.0, None, None, "a test")
    return budgeted(PROGRAM, (), policy, lambda way, reads, sure: planned(way, naive=naive)).plan


def told(result: InstanceResult) -> tuple[object, ...]:
    """What a user sees of a result, and how sure it is."""
    texts = [row.generated.text for row in result.rows]
    return result.value, result.score, result.support, result.error, texts, result.near_ties


@pytest.mark.parametrize("naive", [False, True], ids=["ruled", "naive"])
@pytest.mark.parametrize("number", range(len(WAYS)), ids=[way.name for way in WAYS])
def test_a_way_gives_what_its_own_program_gives(number: int, naive: bool) -> None:
    whole, own = by_policy(number, naive=naive), planned(fixed(PROGRAM, WAYS[number]), naive=naive).plan
    for seed in SEEDS:
        one, other = result_of(whole, seed, 1), result_of(own, seed, 2)
        assert told(one) == told(other)
        assert one.sampled_tokens == other.sampled_tokens
        assert one.tried == (WAYS[number].name,)


def test_what_follows_a_way_depends_on_its_support_alone() -> None:
    turns = {NARROW: Turn((0.9,), (SEARCH, None)), SEARCH: Turn((0.5, 0.8), (BEST, None, None))}
    whole = by_policy(NARROW, turns)
    plans = {number: planned(fixed(PROGRAM, WAYS[number])).plan for number in (NARROW, SEARCH, BEST)}
    lengths = set[int]()
    for seed in range(8):
        tried, at = list[int](), NARROW
        while True:
            tried.append(at)
            end = result_of(plans[at], seed, 0)
            following = turns[at].after(end.support) if at in turns else None
            if following is None:
                break
            at = following
        for order in (1, 2, 3):
            result = result_of(whole, seed, order)
            assert result.tried == tuple(WAYS[number].name for number in tried)
            assert told(result)[:-1] == told(end)[:-1]
        lengths.add(len(tried))
    assert lengths == {1, 2, 3}


def test_samples_of_an_earlier_way_are_drawn_and_counted_once() -> None:
    whole = by_policy(NARROW, {NARROW: Turn((), (WIDE,))})
    wide = planned(fixed(PROGRAM, WAYS[WIDE])).plan
    for seed in SEEDS:
        result, own = result_of(whole, seed, 1), result_of(wide, seed, 1)
        assert told(result)[:-1] == told(own)[:-1]
        assert result.sampled_tokens == own.sampled_tokens


def test_tokens_do_not_depend_on_the_order_of_requests() -> None:
    other = [way.name for way in WAYS].index("arm 3 (width=2, n=3)")
    whole = by_policy(other, {other: Turn((), (SEARCH,))})
    for seed in SEEDS:
        assert len({result_of(whole, seed, order).sampled_tokens for order in range(4)}) == 1


def test_a_way_without_an_answer_is_unsure_of_it() -> None:
    onward, alone = by_policy(FAILING, {FAILING: Turn((0.0,), (BEST, None))}), by_policy(FAILING)
    best = planned(fixed(PROGRAM, WAYS[BEST])).plan
    for seed in SEEDS:
        failed, result = result_of(alone, seed, 0), result_of(onward, seed, 0)
        assert failed.error is not None and failed.support is None
        assert failed.error.startswith(
            "`answer` is none: the regex of line 17 matched nothing: `/no such (text)/` found"
        )
        assert result.tried == ("arm 1", "arm 4")
        assert told(result)[:-1] == told(result_of(best, seed, 0))[:-1]


def test_support_of_a_vote_is_the_share_of_the_winner_among_all_rows() -> None:
    for seed in SEEDS:
        result = result_of(planned(fixed(PROGRAM, WAYS[WIDE])).plan, seed, 0)
        answers = [row.columns["answer"] for row in result_of(_unvoted(), seed, 0).rows]
        most = max(answers.count(answer) for answer in answers if answer is not None)
        assert result.support == round(most / 6, 5)


def _unvoted() -> PhysicalPlan:
    text = r"""
model llm = "r"

program p(problem: text) -> int {
  chat user=problem
  generate llm n=6 temperature=0.8
  extract answer = /(\d+)/
  return count(answer)
}
"""
    return plan(program_of(text, None, ENVIRONMENT))


def test_support_of_the_best_row_is_what_it_was_chosen_by() -> None:
    best = planned(fixed(PROGRAM, WAYS[BEST])).plan
    results = [result for seed in SEEDS if (result := result_of(best, seed, 0)).error is None]
    assert results
    assert [result.support for result in results] == [result.rows[0].columns["rating"] for result in results]

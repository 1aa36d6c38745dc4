"""`call … into`: another program on rows of its own, of which nothing but its value comes out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.executor.text.context import Turn
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan
from tests.support.planner.lowered import program_of
from tests.support.planner.runs import answers, assert_same
from tests.support.planner.scripted_runs import ENVIRONMENT, result_of
from tests.support.planner.searches import HEADER

_OTHER = """program other(question: text) -> text {
  chat system="Be brief." user="Other: {question}"
  generate llm n=2 temperature=1.0 into piece
  score prm
  best by score
  extract answer = /[0-9]+/
  return "{answer} {piece}"
}
program halves(part: text) -> text {
  chat user="Halve: {part}"
  generate llm n=2 temperature=1.0 into half
  extract digit = /[0-9]/
  call halves(digit) into below depth=2
  join whole = "{below}" sep="+"
  return "({whole})"
}
"""


def naive_of(body: str) -> PhysicalPlan:
    return plan(program_of(f"{HEADER}{_OTHER}program p(problem: text) -> text {{\n{body}\n}}", "p", ENVIRONMENT))


def ran(body: str) -> InstanceResult:
    """The result of the naive plan, which all rules must agree with."""
    naive = naive_of(body)
    for reads in (None, ()):
        for seed in range(3):
            expected, result = result_of(naive, seed, 0), result_of(optimize(replace(naive, reads=reads)).plan, seed, 1)
            assert answers([expected]) == answers([result])
            if reads is None:
                assert_same([expected], [result])
    return result_of(naive, 0, 0)


_CALLER = """
  chat user=problem
  generate llm n=3 temperature=1.0
  score logprob
  extract answer = /is ([0-9]+)/
"""


@pytest.mark.parametrize("after", ["", "  best by score\n", "  vote answer\n"])
def test_the_rows_of_the_caller_stay_as_they_are(after: str) -> None:
    plain = ran(f"{_CALLER}{after}  return text")
    called = ran(f"{_CALLER}  call other(problem) into sum\n{after}  return text")
    assert (plain.value, plain.score) == (called.value, called.score)
    for row, other in zip(plain.rows, called.rows, strict=True):
        columns = {name: value for name, value in other.columns.items() if name != "sum"}
        assert replace(other, columns=columns) == row


def test_each_row_gets_a_value_of_its_own_from_a_conversation_of_its_own() -> None:
    alone = ran("  call other(problem) into sum\n  return sum")
    assert isinstance(alone.value, str) and alone.rows[0].context is None
    assert set(alone.rows[0].columns) == {"sum"}
    four = ran("  chat user=problem\n  split 4\n  call other(problem) into sum\n  generate llm\n  return sum")
    assert len({row.columns["sum"] for row in four.rows}) > 1
    assert {row.context.turns for row in four.rows if row.context} == {(Turn("user", "What is 0 * 4?"),)}


def test_a_call_can_come_before_the_conversation() -> None:
    result = ran('  call other("1 + 1") into sum\n  chat user="{sum}: {problem}"\n  generate llm\n  return sum')
    context = result.rows[0].context
    assert context is not None and context.turns == (Turn("user", f"{result.value}: What is 0 * 4?"),)


def test_without_rows_there_is_no_value() -> None:
    nobody = _OTHER.replace("best by score", "where score > 2").replace("other", "nobody", 1)
    text = (
        f"{HEADER}{nobody}program p(problem: text) {{ chat user=problem | call nobody(problem) into x | generate llm }}"
    )
    result = result_of(plan(program_of(text, "p", ENVIRONMENT)), 0, 0)
    assert result.error is None and result.rows[0].columns["x"] is None


def test_scores_read_again_are_those_of_the_row() -> None:
    """Rows run side by side, each with scores of its own to read again."""
    peeks = "".join(f"peek {{ generate llm into more{number} }}\n  " for number in range(4))
    again = f"score prm\n  {peeks}score prm reduce=min into least\n"
    twice = _OTHER.replace("score prm\n", again).replace("{piece}", "{least}").replace("n=2", 'n=2 stop="a"')
    stages = "chat user=problem | split 5 | call other(problem) into x | return x"
    text = f"{HEADER}{twice}program p(problem: text) {{ {stages} }}"
    naive = plan(program_of(text, "p", ENVIRONMENT))
    for order in range(4):
        assert_same([result_of(naive, 0, 0)], [result_of(optimize(naive).plan, 0, order)])


def test_a_program_that_ends_in_a_call_returns_what_that_one_does() -> None:
    result = ran("  call other(problem)")
    assert result.value == f"{result.rows[0].columns['answer']} {result.rows[0].columns['piece']}"
    empty = (
        'program empty(q: text) -> text { chat user=q | generate llm | where tokens > 9000 | return text else "{q}" }'
    )
    outer = "program outer(q: text) -> text { call empty(q) }"
    program = f"{HEADER}{empty}\n{outer}\nprogram p(problem: text) -> text {{ call outer(problem) }}"
    naive = plan(program_of(program, "p", ENVIRONMENT))
    assert [result_of(one, 0, 0).value for one in (naive, optimize(naive).plan)] == ["What is 0 * 4?"] * 2


def test_a_program_that_calls_itself_ends_at_its_depth() -> None:
    inner = "(none+none)"
    assert ran("  call halves(problem) into tree\n  return tree").value == f"(({inner}+{inner})+({inner}+{inner}))"

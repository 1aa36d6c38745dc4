"""The ways of a program that leaves arms and widths open, and what is left where the caller gives some."""

from __future__ import annotations

import pytest

from qpdsl.arguments import with_defaults
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.budget_policy import FixedStrategy
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.strategies.written_strategies import fixed, strategies_of
from tests.support.planner.lowered import program_of

HEAD = 'model llm = "zoo/counting"\nmodel prm = "zoo/counting-prm"\n'


def program(text: str, name: str | None = None) -> LogicalProgram:
    return program_of(HEAD + text, name)


def operators(of: LogicalProgram) -> list[ops.Operator]:
    return [node.op for node in of.plan]


TWO_ARMS = r"""
program p(problem: text, width: int = auto(2, 4)) -> text within budget(tokens=2000) {
  chat user="{width} times: {problem}"
  strategy {
    { generate llm temperature=0 }
    or {
      generate llm temperature=1
      generate llm n=auto(3, 5) stop="a"
    }
  }
  extract answer = /x/
  vote answer
}
"""


def test_names_and_order_of_ways() -> None:
    # Both arms have the parameter, since what stands before them reads it.
    assert [way.name for way in strategies_of(program(TWO_ARMS))] == [
        "arm 1 (width=2)",
        "arm 1 (width=4)",
        "arm 2 (width=2, n=3)",
        "arm 2 (width=2, n=5)",
        "arm 2 (width=4, n=3)",
        "arm 2 (width=4, n=5)",
    ]


def test_an_arm_that_does_not_read_a_width_has_one_way() -> None:
    text = TWO_ARMS.replace("{width} times: ", "").replace("n=auto(3, 5)", "n=width")
    assert [way.name for way in strategies_of(program(text))] == ["arm 1", "arm 2 (width=2)", "arm 2 (width=4)"]


def test_the_usual_widths() -> None:
    own = program("program p(problem: text) { chat user=problem\n generate llm n=auto }")
    assert strategies_of(own) == tuple(FixedStrategy(0, (n,), f"n={n}") for n in (4, 16, 64))
    assert own.budget is None


@pytest.mark.parametrize("number", range(6))
def test_a_way_is_the_program_as_if_it_had_been_written_so(number: int) -> None:
    own = program(TWO_ARMS)
    way = strategies_of(own)[number]
    width, n = way.widths[0], way.widths[-1]
    arms = [
        "{ generate llm temperature=0 }",
        f'{{\n generate llm temperature=1\n generate llm n={n} stop="a"\n }}',
    ]
    start, end = TWO_ARMS.index("strategy {"), TWO_ARMS.index("  extract")
    written = TWO_ARMS[:start] + arms[way.arm].strip("{} \n") + "\n" + TWO_ARMS[end:]
    written = written.replace(", width: int = auto(2, 4)", "").replace("{width}", str(width))
    written = written.replace(" within budget(tokens=2000)", "")
    made, other = fixed(own, way), program(written)
    assert operators(made) == operators(other)
    assert made.params == other.params
    assert (made.models, made.score_column, made.returns) == (other.models, other.score_column, other.returns)
    assert not made.ways
    assert made.budget is None


def test_a_way_of_another_program_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`p` has no strategy p\(n=3\)"):
        fixed(program(TWO_ARMS), FixedStrategy(0, (3,), "p(n=3)"))


def test_a_value_that_is_given_is_no_width_any_more() -> None:
    left = with_defaults(program(TWO_ARMS), {"width": 7})
    assert [way.name for way in strategies_of(left)] == ["arm 1", "arm 2 (n=3)", "arm 2 (n=5)"]
    first = fixed(left, strategies_of(left)[0])
    assert [(param.name, getattr(param.default, "value", None)) for param in first.params] == [
        ("problem", None),
        ("width", 7),
    ]


def test_where_all_widths_are_given_nothing_is_left_open() -> None:
    text = "program p(problem: text, n: int = auto) within budget(tokens=9) { chat user=problem\n generate llm n=n }"
    left = with_defaults(program(text), {"n": 5})
    assert strategies_of(left) == ()
    assert left.budget is None
    assert [param.name for param in left.params] == ["problem", "n"]


def test_ways_may_report_scores_of_their_own() -> None:
    text = """
program p(problem: text) {
  chat user=problem
  strategy {
    { generate llm n=auto(2, 3) | score prm into quality }
    or { generate llm }
  }
}
"""
    own = program(text)
    assert [fixed(own, way).score_column for way in strategies_of(own)] == ["quality", "quality", None]


def test_the_models_of_all_arms_are_the_programs() -> None:
    text = """
program p(problem: text) {
  chat user=problem
  strategy {
    { generate llm n=2 }
    or { generate "zoo/counting-mini" n=2 | score prm }
  }
}
"""
    assert [*program(text).models] == ["llm", "zoo/counting-mini", "prm"]

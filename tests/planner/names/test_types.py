"""What programs give back, and the types of expressions."""

from __future__ import annotations

import pytest

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import QpError
from tests.support.planner.lowered import START, last, lowered, name, program_of


@pytest.mark.parametrize(
    ("end", "value", "returns"),
    [
        ("vote answer", name("answer"), "text"),
        ("vote score", name("score"), "float"),
        ("vote answer | best by score", name("text"), "text"),
        ("return answer", name("answer"), "text"),
        ("return tokens", name("tokens"), "int"),
    ],
)
def test_what_a_program_gives_back(end: str, value: ast.Expr, returns: str) -> None:
    program = lowered(START + end)
    assert last(program).value == value
    assert program.returns == returns


@pytest.mark.parametrize(
    ("value", "returns"),
    [
        ("1 + 2", "int"),
        ("1 / 2", "float"),
        ("tokens % 2", "int"),
        ("score * 2", "float"),
        ("max(tokens)", "int"),
        ("mean(tokens)", "float"),
        ("min(1, 2.5)", "float"),
        ("len(text)", "int"),
        ("text + answer", "text"),
        ('"{answer}: {score}"', "text"),
        ("answer == none", "bool"),
        ("all(finished) and not finished", "bool"),
        ("text < answer", "bool"),
        ("none", "none"),
    ],
)
def test_types_of_expressions(value: str, returns: str) -> None:
    assert lowered(START + f"return {value}").returns == returns


HELD = """
model llm = "m"
schema Item { name: text, price: float }
schema Order { id: int, items: [Item], paid: bool, note: text? }
program p(q: text) -> %s {
  chat user=q
  %s
}
"""


@pytest.mark.parametrize(
    ("returns", "stages", "parse"),
    [
        ("Order", "generate llm as Order", True),
        ("Order", "generate llm n=4 as Order | extract id = .id | keep 2 by id | return text", True),
        ("Order", "generate llm n=4 as Order | vote text", True),
        ("Order", 'generate llm as Order into first | chat user="{first}" | generate llm | return first', False),
        ("Order", "repeat 2 { generate llm as Order }", True),
        ("Order", "branch { { generate llm as Order } { generate llm temperature=0 as Order } }", True),
        ("text", "generate llm as Order", False),
        ("float", "generate llm as Order | extract price = .items[0].price | vote price", False),
        ("int", "generate llm as Order | extract id = .id | vote id", False),
        ("bool", "generate llm as Order | extract paid = .paid | vote paid", False),
        ("text", "generate llm as Order | extract items = .items | vote items", False),
    ],
)
def test_results_held_to_a_schema(returns: str, stages: str, parse: bool) -> None:
    program = program_of(HELD % (returns, stages))
    assert (program.returns, last(program).parse) == (returns, parse)


@pytest.mark.parametrize(
    "stages",
    [
        "generate llm as Order | repeat 2 { chat user=q | generate llm }",
        "generate llm as Item",
        "generate llm as Order | chat user=q",
        "branch { { generate llm as Order } { generate llm } }",
        "generate llm as Order | extract id = .id | return id",
    ],
)
def test_results_not_held_to_it(stages: str) -> None:
    with pytest.raises(QpError) as error:
        program_of(HELD % ("Order", stages))
    assert {found.code for found in error.value.diagnostics if found.severity == "error"} == {"QP214"}

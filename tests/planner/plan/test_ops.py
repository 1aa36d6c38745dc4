"""The operators that stages become, their numbers, their columns and their models."""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source, Span
from qpdsl.grammar.words import COLUMNS
from qpdsl.planner.check.program import check, lower
from qpdsl.planner.plan import ops
from tests.support.planner.lowered import chain, codes, lowered


def test_defaults_and_best() -> None:
    program = lowered("chat user=problem | generate llm | best by logprob")
    generate, best = chain(program)[1:3]
    assert isinstance(generate, ops.Generate)
    assert isinstance(best, ops.Keep)
    assert (generate.n, generate.temperature) == (ast.Literal(1, span=Span(0, 0)), ast.Literal(1.0, span=Span(0, 0)))
    assert (generate.stop, generate.max_tokens) == (None, None)
    assert best.count == ast.Literal(1, span=Span(0, 0))


def test_stages_are_numbered_in_reading_order() -> None:
    program = lowered("chat user=problem | repeat 2 { generate llm | score prm } | extract a = /x/ | vote a")
    assert [op.stage for op in chain(program)] == [0, 1, 4, 5, 6]
    repeat = program.plan[1]
    assert isinstance(repeat.op, ops.Repeat)
    assert [node.op.stage for node in repeat.inside[0]] == [2, 3]


def test_columns_follow_the_stages() -> None:
    program = lowered("chat user=problem | repeat 2 { generate llm | score prm into q } | extract answer = /x/")
    columns = [list(node.columns) for node in program.plan]
    assert columns[0] == list(COLUMNS)
    assert columns[1][-1] == "q"
    assert columns[2][-2:] == ["q", "answer"]
    assert program.score_column == "q"


def test_models_in_order_of_use() -> None:
    program = lowered('chat user=problem | generate llm | score prm | generate "a/b" | score "c/d" into e')
    assert list(program.models.items()) == [
        ("llm", "zoo/counting"),
        ("prm", "zoo/counting-prm"),
        ("a/b", "a/b"),
        ("c/d", "c/d"),
    ]
    assert program.score_column == "e"


def test_until_may_read_what_the_body_makes() -> None:
    lowered("chat user=problem | repeat 3 until max(score) > 0.9 { generate llm | score prm }")
    assert codes("chat user=problem | repeat 3 { keep 1 by score | generate llm | score prm }") == ["QP218", "QP203"]


def test_a_left_out_line_excuses_what_it_may_have_made() -> None:
    assert codes("chat user=problem | generate llm | extrct a = /x/ | vote a") == ["QP110"]
    assert codes("chatt user=problem | generate llm | vote text") == ["QP110"]
    assert codes("chat user=problem | generate llm | vote a | extrct a = /x/") == ["QP203", "QP110"]


def test_warnings_come_with_the_program() -> None:
    text = 'program p(problem: text) { chat user=problem | generate "m" n=2 temperature=0 }'
    file = parse_file(Source("p.qp", text))
    assert [warning.code for warning in lower(file).warnings] == ["QP302"]
    assert [warning.code for warning in check(file)] == ["QP302"]

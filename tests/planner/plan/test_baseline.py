"""The greedy twin of a program: what a search is measured against."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.naive import greedy_of, plan
from tests.support.planner.lowered import chain, lowered


def test_greedy_twin() -> None:
    program = lowered(
        'chat user=problem | repeat 9 { generate llm n=4 stop="x" max_tokens=9 | score prm } | best by score'
        " | extract answer = /x/ | return answer"
    )
    twin = greedy_of(program)
    assert twin is not None
    kinds = [op.operator for op in chain(twin)]
    assert kinds == ["SetContext", "Generate", "Extract", "Return"]
    generate = chain(twin)[1]
    assert isinstance(generate, ops.Generate)
    assert (generate.stop, generate.max_tokens, generate.stage) == (None, None, 2)
    assert (twin.score_column, list(twin.models)) == (None, ["llm"])
    plan(twin)


@pytest.mark.parametrize(
    ("text", "has_twin"),
    [
        ("chat user=problem | generate llm n=4 max_tokens=9 | vote text", True),
        ("chat user=problem | generate llm temperature=0 | return text", False),
        ("chat user=problem | generate llm temperature=0 n=1 | score prm | best by score", False),
        ("chat user=problem | generate llm n=4 | score prm | vote score", False),
        ("chat user=problem | generate llm n=4 | score prm | return mean(score)", False),
        ("chat user=problem | return problem", False),
        ("chat user=problem | generate llm", True),
    ],
)
def test_which_programs_have_a_greedy_twin(text: str, has_twin: bool) -> None:
    assert (greedy_of(lowered(text)) is not None) == has_twin


def test_a_whole_sample_keeps_its_bound() -> None:
    twin = greedy_of(lowered("chat user=problem | generate llm n=4 max_tokens=9 | vote text"))
    assert twin is not None
    generate = chain(twin)[1]
    assert isinstance(generate, ops.Generate)
    assert generate.max_tokens == ast.Literal(9, span=Span(0, 0))


def test_the_greedy_twin_of_a_conversation() -> None:
    program = lowered(
        'chat user=topic | generate llm n=2 into points | score prm | chat user="Write up {points}."'
        ' | repeat 3 { generate llm n=2 stop="x" as choice("a", "b") } | where finished | vote text'
    )
    twin = greedy_of(program)
    assert twin is not None
    kinds = [op.operator for op in chain(twin)]
    assert kinds == ["SetContext", "Generate", "SetContext", "Generate", "Return"]
    generates = [op for op in chain(twin) if isinstance(op, ops.Generate)]
    assert [op.into and op.into.id for op in generates] == ["points", None]
    assert generates[1].constraint == ops.Constraint("choice", '["a", "b"]', 'choice("a", "b")')
    assert greedy_of(replace(twin)) is None
    assert greedy_of(lowered("chat user=topic | branch { { generate llm n=2 } { generate slm } }")) is None
    scored = 'chat user=topic | generate llm n=2 | score prm | chat user="{score}" | generate llm'
    assert greedy_of(lowered(scored)) is None

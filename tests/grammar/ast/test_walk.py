"""Walks over the tree go through everything once, in reading order."""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import MAX_DEPTH, blocks, children, column_makers, is_shallow, walk, walk_stages
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source, Span

PROGRAM = """
model llm = "m"
program p(q: text, n: int = 2) {
  chat user="Q: {q}"
  repeat n until all(finished) {
    generate llm n=n into draft
    branch { { score llm } { peek { score llm into inner } | extract answer = /a/ } }
  }
  call other(q) into result
}
"""
FILE = parse_file(Source("p.qp", PROGRAM))
BODY = FILE.programs[0].body


def test_every_node_once_in_reading_order() -> None:
    nodes = list(walk(FILE))
    assert len({id(node) for node in nodes}) == len(nodes)
    below = [node for parent in nodes for node in children(parent)]
    assert {id(node) for node in below} == {id(node) for node in nodes[1:]}
    names = [node for node in walk(BODY) if isinstance(node, ast.Name)]
    assert [name.id for name in names] == ["q", "n", "finished", "n", "draft", "inner", "answer", "q", "result"]
    assert [name.span.start for name in names] == sorted(name.span.start for name in names)


def test_stages_with_those_in_their_blocks() -> None:
    words = [stage.operator for stage in walk_stages(BODY)]
    assert words == ["SetContext", "Repeat", "Generate", "Branch", "Score", "Peek", "Score", "Extract", "Call"]
    assert list(walk_stages(BODY)) == [node for node in walk(BODY) if isinstance(node, ast.Stage)]
    assert [len(blocks(stage)) for stage in walk_stages(BODY)] == [0, 1, 0, 2, 0, 1, 0, 0, 0]


def test_columns_with_the_stages_that_make_them() -> None:
    makers = [(column, stage.operator) for column, stage in column_makers(BODY)]
    assert makers == [
        ("draft", "Generate"),
        ("score", "Score"),
        ("inner", "Score"),
        ("answer", "Extract"),
        ("result", "Call"),
    ]


def test_depth_counts_no_stages_of_blocks() -> None:
    span = Span(0, 0)
    value: ast.Expr = ast.Name("x", span=span)
    stage: ast.Stage = ast.Where(value, span=span)
    for _ in range(MAX_DEPTH):
        value, stage = ast.Unary("-", value, span=span), ast.Peek((stage,), span=span)
    assert is_shallow(value) and is_shallow(stage)
    assert not is_shallow(ast.Unary("-", value, span=span))

"""Parse tree to syntax tree.

What the grammar leaves open is checked here: which options a stage takes, each at most once; the words that `reduce=`
takes; regexes and strings. A faulty option is left out and its stage kept, so that the checker can go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from typing import Any

from lark import Token, Tree
from lark.visitors import Transformer_NonRecursive, v_args

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Label
from qpdsl.grammar.parts import Option, Parts, at, name_of, path_of, span_of
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import STAGES

MAX_DEPTH = 64


@v_args(meta=True)
class ToAst(Parts, Transformer_NonRecursive[Token, Any]):
    """Turns the tree of one text into a tuple of declarations, or of stages for a pipeline; collects `faults`.

    `headless` holds the offsets of braces whose head was faulty and is blanked: their blocks need no second error.
    `gaps` holds the parts that are left out, and is added to.
    """

    def __init__(self, headless: AbstractSet[int], gaps: Iterable[Span]) -> None:
        super().__init__()
        self.headless = headless
        self.gaps = list(gaps)

    # Declarations

    def file(self, meta: Any, children: list[Any]) -> tuple[Any, ...]:
        for block in (child for child in children if isinstance(child, _Block)):
            self._headless(block, "a block belongs to a program", "program NAME(PARAMETER: TYPE) -> text { … }")
        return tuple(child for child in children if not isinstance(child, _Block))

    def pipeline(self, meta: Any, children: list[Any]) -> tuple[ast.Stage, ...]:
        return tuple(self._stages(children))

    def model(self, meta: Any, children: list[Any]) -> ast.Model:
        name, raw = children
        return ast.Model(str(name), self.plain(raw, "a model id"), span=span_of(meta), name_span=at(name))

    def program(self, meta: Any, children: list[Any]) -> ast.Program:
        name, params, returns, block = children
        body = tuple(self._stages(block.stages))
        if not body and not _within(self.gaps, block.span):
            self.fault("QP121", f"program `{name}` has no stages", at(name))
        return ast.Program(str(name), params or (), returns, body, span=span_of(meta), name_span=at(name))

    def params(self, meta: Any, children: list[Any]) -> tuple[ast.Param, ...]:
        return tuple(children)

    def param(self, meta: Any, children: list[Any]) -> ast.Param:
        name, type_, default = children
        if default is not None and not self._shallow(default):
            default = None
        return ast.Param(str(name), type_, default, span=span_of(meta), name_span=at(name))

    def type(self, meta: Any, children: list[Any]) -> ast.TypeRef:
        return ast.TypeRef(str(children[0]), span=span_of(meta))

    # Stages

    def block(self, meta: Any, children: list[Any]) -> _Block:
        return _Block(children, span_of(meta))

    def prompt(self, meta: Any, children: list[Any]) -> ast.Prompt:
        return ast.Prompt(self.string(children[0]), span=span_of(meta))

    def chat(self, meta: Any, children: list[Option]) -> ast.Chat:
        turns = []
        for key, value in children:
            if self.is_option("chat", key):
                span = Span(key.start_pos or 0, value.span.end)
                turns.append(ast.Turn(key.value, value, span=span))
        return ast.Chat(tuple(turns), span=span_of(meta))

    def generate(self, meta: Any, children: list[Any]) -> ast.Generate:
        return ast.Generate(children[0], **self.options("generate", children[1:]), span=span_of(meta))

    def score(self, meta: Any, children: list[Any]) -> ast.Score:
        options = self.options("score", [child for child in children[1:] if isinstance(child, tuple)])
        intos = [child for child in children[1:] if isinstance(child, ast.Name)]
        if len(intos) > 1:
            first = (Label(intos[0].span, "the first"),)
            self.fault("QP117", "`into` is given twice", intos[1].span, "again here", secondary=first)
        reduce = self.reduction(options["reduce"]) if "reduce" in options else "last"
        return ast.Score(children[0], reduce, intos[0] if intos else None, span=span_of(meta))  # type: ignore[arg-type]

    def into(self, meta: Any, children: list[Token]) -> ast.Name:
        return name_of(children[0])

    def extract(self, meta: Any, children: list[Token]) -> ast.Extract:
        column, pattern = children
        value = self.pattern(pattern) if pattern.type == "REGEX" else path_of(pattern)
        return ast.Extract(name_of(column), value, span=span_of(meta))

    def keep(self, meta: Any, children: list[ast.Expr]) -> ast.Keep:
        return ast.Keep(children[0], children[1], span=span_of(meta))

    def best(self, meta: Any, children: list[ast.Expr]) -> ast.Best:
        return ast.Best(children[0], span=span_of(meta))

    def vote(self, meta: Any, children: list[Any]) -> ast.Vote:
        return ast.Vote(name_of(children[0]), **self.options("vote", children[1:]), span=span_of(meta))

    def repeat(self, meta: Any, children: list[Any]) -> ast.Repeat:
        limit, until, block = children
        body = tuple(self._stages(block.stages))
        if not body and not _within(self.gaps, block.span):
            self.fault("QP121", "`repeat` has no stages to run", Span(meta.start_pos, meta.start_pos + 6))
        return ast.Repeat(limit, until, body, span=span_of(meta))

    def return_(self, meta: Any, children: list[ast.Expr]) -> ast.Return:
        return ast.Return(children[0], span=span_of(meta))

    def model_ref(self, meta: Any, children: list[Token]) -> ast.ModelRef:
        token = children[0]
        quoted = token.type == "STRING"
        return ast.ModelRef(self.plain(token, "a model id") if quoted else str(token), quoted, span=span_of(meta))

    def option(self, meta: Any, children: list[Any]) -> Option:
        return children[0], children[1]

    # Expressions

    def or_(self, meta: Any, children: list[Any]) -> ast.Expr:
        return _fold(children)

    and_ = compare = sum = product = or_

    def not_(self, meta: Any, children: list[Any]) -> ast.Expr:
        return _prefix(children)

    unary = not_

    def matches(self, meta: Any, children: list[Any]) -> ast.Matches:
        subject, pattern = children
        return ast.Matches(subject, self.pattern(pattern), span=span_of(meta))

    def literal(self, meta: Any, children: list[Token]) -> ast.Expr:
        token = children[0]
        if token.type == "STRING":
            return self.string(token)
        if token.type == "NUMBER":
            return self.number(token)
        return ast.Literal({"TRUE": True, "FALSE": False, "NONE": None}[token.type], span=at(token))

    def name(self, meta: Any, children: list[Token]) -> ast.Name:
        return name_of(children[0])

    def apply(self, meta: Any, children: list[Any]) -> ast.Apply:
        function, args = children
        return ast.Apply(str(function), args or (), span=span_of(meta), name_span=at(function))

    def args(self, meta: Any, children: list[ast.Expr]) -> tuple[ast.Expr, ...]:
        return tuple(children)

    # Parts

    def _stages(self, children: list[Any]) -> Iterator[ast.Stage]:
        """The stages of a block; those of a block without a head stand in its place."""
        for child in children:
            if isinstance(child, _Block):
                self._headless(child, "a block belongs to a `repeat`", STAGES["repeat"].usage)
                yield from self._stages(child.stages)
            else:
                if self._shallow(child):
                    yield child

    def _headless(self, block: _Block, message: str, usage: str) -> None:
        self.gaps.append(block.span)
        if block.span.start not in self.headless:
            span = Span(block.span.start, block.span.start + 1)
            self.fault("QP122", message, span, "nothing says what this block is for", notes=(f"form: {usage}",))

    def _shallow(self, node: ast.Node) -> bool:
        """Leaves out what is too deep to walk: long chains of operators nest to the left."""
        level = [node]
        for _ in range(MAX_DEPTH + 1):
            level = [child for parent in level for child in _children(parent)]
            if not level:
                return True
        self.fault(
            "QP103", f"this nests over {MAX_DEPTH} deep", Span(node.span.start, node.span.start + 1), "from here"
        )
        self.gaps.append(node.span)
        return False


class _Block:
    def __init__(self, stages: list[Any], span: Span) -> None:
        self.stages = stages
        self.span = span


def _within(gaps: list[Span], span: Span) -> bool:
    return any(span.start <= gap.start < span.end for gap in gaps)


def _fold(children: list[Any]) -> ast.Expr:
    left: ast.Expr = children[0]
    for operator, right in zip(children[1::2], children[2::2], strict=True):
        left = ast.Binary(str(operator), left, right, span=left.span.to(right.span))  # type: ignore[arg-type]
    return left


def _prefix(children: list[Any]) -> ast.Expr:
    operand: ast.Expr = children[-1]
    for operator in reversed(children[:-1]):
        span = Span(operator.start_pos, operand.span.end)
        operand = ast.Unary(str(operator), operand, span=span)  # type: ignore[arg-type]
    return operand


def _children(node: Any) -> Iterator[Any]:
    """The nodes right below a node, but for the stages of a block, which are checked on their own."""
    if isinstance(node, Tree) or not is_dataclass(node):
        return
    for field in fields(node):
        value = getattr(node, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, ast.Node) and field.name != "body":
                yield item

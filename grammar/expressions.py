"""Expressions of the parse tree to expressions of the syntax tree."""

from __future__ import annotations

from typing import Any

from lark import Token
from lark.visitors import Transformer_NonRecursive, v_args

from qpdsl.grammar import ast
from qpdsl.grammar.parts import Parts, at, name_of, span_of
from qpdsl.grammar.source import Span


@v_args(meta=True)
class Expressions(Parts, Transformer_NonRecursive[Token, Any]):
    """Chains of operators are flat in the parse tree, and nest to the left in the syntax tree."""

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

    def arguments(self, meta: Any, children: list[ast.Argument]) -> tuple[ast.Argument, ...]:
        return tuple(children)

    def argument(self, meta: Any, children: list[Any]) -> ast.Argument:
        name, value = children
        return ast.Argument(None if name is None else str(name), value, span=span_of(meta))


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

"""Expressions of the parse tree to expressions of the syntax tree.

Chains of operators are flat in the parse tree, and nest to the left in the syntax tree.
"""

from __future__ import annotations

from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.builders.faults import Faults
from qpdsl.grammar.builders.leaves import LeafBuilder, at, name_of, span_of
from qpdsl.grammar.literals import strings

# Of the operators that share a chain, those that bind tighter.
_TIGHT = frozenset({"AND", "STAR", "SLASH", "PERCENT"})
_CONSTANTS = {"TRUE": True, "FALSE": False, "NONE": None}


class ExpressionBuilder:
    def __init__(self, faults: Faults, leaves: LeafBuilder) -> None:
        self.faults = faults
        self.leaves = leaves

    def expr(self, meta: Any, children: list[Any]) -> ast.Expr:
        terms = _prefixed(children)
        chain = terms[:1]
        for operator, term in zip(terms[1::2], terms[2::2], strict=True):
            if operator.type in _TIGHT:
                chain[-1] = _binary(chain[-1], operator, term)
            else:
                chain += [operator, term]
        return _fold(chain)

    sum = expr

    def compare(self, meta: Any, children: list[Any]) -> ast.Expr:
        return _fold(children)

    def matches(self, meta: Any, children: list[Any]) -> ast.Matches:
        subject, pattern = children
        return ast.Matches(subject, self.leaves.pattern(pattern), span=span_of(meta))

    def literal(self, meta: Any, children: list[Token]) -> ast.Expr:
        token = children[0]
        if token.type == "STRING":
            return self.leaves.string(token)
        if token.type == "NUMBER":
            return self.leaves.number(token)
        return ast.Literal(_CONSTANTS[token.type], span=at(token))

    def name(self, meta: Any, children: list[Token]) -> ast.Name:
        return name_of(children[0])

    def path(self, meta: Any, children: list[Token]) -> ast.Path:
        base, steps = children
        return ast.Path(name_of(base), strings.path_steps(steps), span=span_of(meta))

    def apply(self, meta: Any, children: list[Any]) -> ast.Apply:
        function, args, per = children
        column = None if per is None else name_of(per)
        return ast.Apply(str(function), args or (), column, span=span_of(meta), name_span=at(function))

    def list_literal(self, meta: Any, children: list[Any]) -> ast.ListLiteral:
        items = (self.leaves.pattern(child) if isinstance(child, Token) else child for child in children)
        return ast.ListLiteral(tuple(item for item in items if item is not None), span=span_of(meta))

    def record_literal(self, meta: Any, children: list[ast.RecordEntry]) -> ast.RecordLiteral:
        firsts: dict[str, ast.RecordEntry] = {}
        for entry in children:
            first = firsts.setdefault(entry.name, entry)
            if first is not entry:
                self.faults.report_repeated(f"the field `{entry.name}`", entry.name_span, first.name_span)
        return ast.RecordLiteral(tuple(firsts.values()), span=span_of(meta))

    def entry(self, meta: Any, children: list[Any]) -> ast.RecordEntry:
        name, value = children
        return ast.RecordEntry(str(name), value, span=span_of(meta), name_span=at(name))

    def args(self, meta: Any, children: list[ast.Expr]) -> tuple[ast.Expr, ...]:
        return tuple(children)


def _prefixed(children: list[Any]) -> list[Any]:
    """Terms and the operators between them: `not` and `-` where a term is due are a part of it."""
    terms: list[Any] = []
    prefixes: list[Token] = []
    for child in children:
        if isinstance(child, Token):
            (terms if len(terms) % 2 else prefixes).append(child)
            continue
        while prefixes:
            prefix = prefixes.pop()
            child = ast.Unary(str(prefix), child, span=at(prefix).to(child.span))  # type: ignore[arg-type]
        terms.append(child)
    return terms


def _fold(chain: list[Any]) -> ast.Expr:
    left: ast.Expr = chain[0]
    for operator, right in zip(chain[1::2], chain[2::2], strict=True):
        left = _binary(left, operator, right)
    return left


def _binary(left: ast.Expr, operator: Token, right: ast.Expr) -> ast.Binary:
    return ast.Binary(str(operator), left, right, span=left.span.to(right.span))  # type: ignore[arg-type]

"""Expressions of the parse tree to expressions of the syntax tree.

Chains of operators are flat in the parse tree, and nest to the left in the syntax tree.

Tokens, and expressions that stand for a plain value, to names, numbers, texts, patterns and models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from lark import Token

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.literals import regex, strings
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import did_you_mean
from qpdsl.grammar.words import AUTO_FORM


class Faults:
    """The `diagnostics` of one text. Builders report to it and go on."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []

    def report(self, code: str, message: str, span: Span, label: str = "", **more: Any) -> None:
        self.diagnostics.append(Diagnostic(code, message, span, label, **more))

    def report_unknown(
        self,
        code: str,
        message: str,
        span: Span,
        word: str,
        known: Iterable[str],
        label: str = "",
        *,
        notes: tuple[str, ...] = (),
    ) -> None:
        """A word that is none of the known ones; the nearest of them is proposed in its place."""
        self.report(code, message, span, label, notes=notes, **did_you_mean(word, known, span))

    def report_unknown_option(
        self, owner: str, span: Span, key: str, known: Iterable[str], usage: str, kind: str = "option"
    ) -> None:
        notes, bounds = (f"form: {usage}",), {"min", "max"}
        # The other end of a range is another thing.
        like = [name for name in known if {key[:3], name[:3]} != bounds]
        help = did_you_mean(key, like, span)
        if not help and kind == "role":
            help = {"help": f"`let {key} = …` makes a column, in a stage of its own"}
        self.report("QP116", f"`{owner}` has no {kind} `{key}`", span, f"unknown {kind}", notes=notes, **help)

    def report_repeated(self, what: str, span: Span, first: Span) -> None:
        """An option or clause that is given again."""
        self.report("QP117", f"{what} is given twice", span, "again here", secondary=(Label(first, "the first"),))


class LeafBuilder(Faults):
    """Builds leaves. A faulty one is reported and still gives a node, so that work can go on."""

    def model_ref(self, meta: Any, children: list[Token]) -> ast.ModelRef:
        return self.model_ref_at(children[0])

    def model_ref_at(self, token: Token) -> ast.ModelRef:
        """The model that a name or a string stands for."""
        if token.type == "STRING":
            return ast.ModelRef(self.plain(self.string(token), "a model id"), True, span=at(token))
        return ast.ModelRef(str(token), False, span=at(token))

    def dotted(self, meta: Any, children: list[Token]) -> Token:
        """A name, or one of another file by that file's name: `shared.llm`."""
        name, *path = children
        if not path:
            return name
        whole = Token("NAME", f"{name}{path[0]}", start_pos=name.start_pos, end_pos=path[0].end_pos)
        if path[0].value.count(".") > 1 or "[" in path[0].value:
            message = f"`{whole}` is no name: that of a file and one that it declares are parted by one `.`"
            self.report("QP109", message, at(whole), "expected a name")
        return whole

    # Of tokens

    def string(self, token: Token) -> ast.Template:
        template, faults = strings.template(str(token), token.start_pos or 0)
        self.diagnostics += faults
        return template

    def number(self, token: Token) -> ast.Literal:
        whole = token.value.isdigit()
        if len(token) > 400 or (not whole and not math.isfinite(float(token))):
            self.report("QP301", "this number is too large", at(token))
            return ast.Literal(0, span=at(token))
        return ast.Literal(int(token) if whole else float(token), span=at(token))

    def pattern(self, token: Token) -> ast.Regex:
        start = (token.start_pos or 0) + 1
        fault = regex.check(token.value[1:-1], start)
        if fault:
            self.diagnostics.append(fault)
        return ast.Regex(token.value[1:-1], span=at(token))

    # Of expressions

    def plain(self, template: ast.Template, what: str, *, empty: bool = False) -> str:
        """The text of a string that interpolates nothing; `empty` says that it may be empty."""
        names = [part for part in template.parts if not isinstance(part, str)]
        if names:
            self.report("QP123", f"{what} is a plain string, without `{{…}}`", names[0].span)
        elif not template.parts and not empty:
            self.report("QP304", f"{what} cannot be empty", template.span)
        return "".join(part for part in template.parts if isinstance(part, str))

    def text_of(self, value: ast.Expr, what: str, *, empty: bool = False) -> str | None:
        """The text of an expression that must be a plain string; None where it is no string."""
        if isinstance(value, ast.Template):
            return self.plain(value, what, empty=empty)
        self.report("QP125", f"{what} is a string", value.span, "expected a string")
        return None

    def model_of(self, value: ast.Expr) -> ast.ModelRef | None:
        """The model that an expression names; None where it names none."""
        if isinstance(value, ast.Name):
            return ast.ModelRef(value.id, False, span=value.span)
        if isinstance(value, ast.Path) and isinstance(value.steps[0], str) and len(value.steps) == 1:
            # That of another file.
            return ast.ModelRef(f"{value.base.id}.{value.steps[0]}", False, span=value.span)
        if isinstance(value, ast.Template):
            return ast.ModelRef(self.plain(value, "a model id"), True, span=value.span)
        self.report("QP125", "a model is a declared name or a quoted id", value.span, "expected a model")
        return None

    def number_between(self, value: ast.Expr, what: str, low: float, high: float | None) -> int | float | None:
        """A number that is written out and lies within bounds; None where it is none, or lies outside."""
        number = constant(value)
        if number is None:
            self.report("QP125", f"{what} is a number that is written out", value.span, "expected a number")
        elif number < low or (high is not None and number > high):
            bounds = f"at least {low}" if high is None else f"between {low} and {high}"
            self.report("QP301", f"{what} is {bounds}", value.span)
            return None
        return number

    def width(self, value: ast.Expr) -> ast.Expr:
        """The value of a width, which may be left open: `auto`, or `auto(4, 16)`, names no column and no function."""
        match value:
            case ast.Name(id="auto"):
                return ast.Auto(span=value.span)
            case ast.Apply(function="auto", args=args):
                return ast.Auto(self._widths(args, value.span), span=value.span)
        return value

    def _widths(self, args: tuple[ast.Expr, ...], span: Span) -> tuple[int, ...]:
        """The widths that an `auto` chooses from: two whole numbers at least, ascending. Else they are reported."""
        widths = [constant(arg) for arg in args]
        whole = tuple(width for width in widths if type(width) is int)
        if len(whole) < max(2, len(widths)) or any(low >= high for low, high in pairwise(whole)):
            message = "`auto` chooses among whole numbers that are written out: two at least, ascending"
            self.report("QP143", message, span, notes=(f"form: {AUTO_FORM}",))
            return ()
        return whole


def constant(value: ast.Expr) -> int | float | None:
    """The number that an expression writes out, with its sign; None where it is no such number."""
    sign = 1
    if isinstance(value, ast.Unary) and value.op == "-":
        sign, value = -1, value.operand
    if isinstance(value, ast.Literal) and type(value.value) in (int, float):
        return sign * value.value  # type: ignore[operator]
    return None


def span_of(meta: Any) -> Span:
    return Span(meta.start_pos, meta.end_pos)


def at(token: Token) -> Span:
    return Span(token.start_pos or 0, token.end_pos or 0)


def name_of(token: Token) -> ast.Name:
    return ast.Name(str(token), span=at(token))


def path_of(token: Token) -> ast.JsonPath:
    steps = token.value.replace("[", ".[").split(".")
    return ast.JsonPath(tuple(int(step[1:-1]) if step[0] == "[" else step for step in steps if step), span=at(token))


# Of the operators that share a chain, those that bind tighter.
_TIGHT = frozenset({"AND", "STAR", "SLASH", "PERCENT"})
_CONSTANTS = {"TRUE": True, "FALSE": False, "NONE": None}


class ExpressionBuilder(LeafBuilder):
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
        return ast.Matches(subject, self.pattern(pattern), span=span_of(meta))

    def literal(self, meta: Any, children: list[Token]) -> ast.Expr:
        token = children[0]
        if token.type == "STRING":
            return self.string(token)
        if token.type == "NUMBER":
            return self.number(token)
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
        items = (self.pattern(child) if isinstance(child, Token) else child for child in children)
        return ast.ListLiteral(tuple(item for item in items if item is not None), span=span_of(meta))

    def item(self, meta: Any, children: list[ast.Expr]) -> ast.Item:
        base, place = children
        return ast.Item(base, place, span=span_of(meta))

    def slice(self, meta: Any, children: list[ast.Expr | None]) -> ast.Slice:
        base, start, stop = children
        assert base is not None
        return ast.Slice(base, start, stop, span=span_of(meta))

    def record_literal(self, meta: Any, children: list[ast.RecordEntry]) -> ast.RecordLiteral:
        firsts: dict[str, ast.RecordEntry] = {}
        for entry in children:
            first = firsts.setdefault(entry.name, entry)
            if first is not entry:
                self.report_repeated(f"the field `{entry.name}`", entry.name_span, first.name_span)
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

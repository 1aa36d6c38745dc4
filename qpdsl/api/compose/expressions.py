"""What a program's expressions are made from: columns, and functions over them.

MERGED: Values that are known when the program runs, as Python objects.

Inside a function under `@qp.program` a parameter annotated `int` is a `Symbol` when it runs and an `int` to a type
checker, and so is everything made from it: annotations say what a value will be when the program runs.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn, TypeVar, cast, final

from qpdsl.api.call_sites import NOWHERE, depth, placed
from qpdsl.api.composition import current, misuse, needed, shown
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span

_MAX_DEPTH = 64
_MAX_BITS = 1024


@final
class Symbol:
    """A value that is known when the program runs, as the expression that it is."""

    __slots__ = ("node",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: ast.Expr) -> None:
        self.node = node

    def __add__(self, other: object) -> Symbol:
        return binary("+", self, other)

    def __radd__(self, other: object) -> Symbol:
        return binary("+", other, self)

    def __sub__(self, other: object) -> Symbol:
        return binary("-", self, other)

    def __rsub__(self, other: object) -> Symbol:
        return binary("-", other, self)

    def __mul__(self, other: object) -> Symbol:
        return binary("*", self, other)

    def __rmul__(self, other: object) -> Symbol:
        return binary("*", other, self)

    def __truediv__(self, other: object) -> Symbol:
        return binary("/", self, other)

    def __rtruediv__(self, other: object) -> Symbol:
        return binary("/", other, self)

    def __mod__(self, other: object) -> Symbol:
        return binary("%", self, other)

    def __rmod__(self, other: object) -> Symbol:
        return binary("%", other, self)

    def __lt__(self, other: object) -> Symbol:
        return binary("<", self, other)

    def __le__(self, other: object) -> Symbol:
        return binary("<=", self, other)

    def __gt__(self, other: object) -> Symbol:
        return binary(">", self, other)

    def __ge__(self, other: object) -> Symbol:
        return binary(">=", self, other)

    def __eq__(self, other: object) -> Symbol:  # type: ignore[override]
        return binary("==", self, other)

    def __ne__(self, other: object) -> Symbol:  # type: ignore[override]
        return binary("!=", self, other)

    def __and__(self, other: object) -> Symbol:
        return binary("and", self, other)

    def __rand__(self, other: object) -> Symbol:
        return binary("and", other, self)

    def __or__(self, other: object) -> Symbol:
        return binary("or", self, other)

    def __ror__(self, other: object) -> Symbol:
        return binary("or", other, self)

    def __invert__(self) -> Symbol:
        return unary("not", self)

    def __neg__(self) -> Symbol:
        return unary("-", self)

    def __pos__(self) -> Symbol:
        return self

    def __format__(self, spec: str) -> str:
        if spec:
            raise misuse("QP501", f"`{spec}` cannot format a value that is known only when the program runs")
        return _mark(self.node)

    def __str__(self) -> str:
        return _mark(self.node)

    def __repr__(self) -> str:
        from qpdsl.grammar.format.unparse import format_expr

        return f"`{format_expr(self.node)}`"

    def __bool__(self) -> bool:
        help = "use `&`, `|` and `~` (or `qp.not_`) for `and`, `or` and `not`, and `rows.where(…)` for `if`"
        raise misuse("QP501", f"whether {self!r} holds is known only when the program runs", help=help)

    def _unknown(self, *_: object) -> NoReturn:
        raise misuse("QP501", f"{self!r} has no value before the program runs")

    __int__ = __float__ = __index__ = __iter__ = __contains__ = __getitem__ = _unknown

    def __len__(self) -> int:
        raise misuse("QP501", f"{self!r} has no value before the program runs", help="write `qp.len(…)`")


def convert(value: object, span: Span) -> ast.Expr:
    """A Python value, or a symbol, as an expression; `span` is where it stands."""
    match value:
        case Symbol(node=node):
            if depth(node, _MAX_DEPTH + 1) > _MAX_DEPTH:
                raise misuse("QP103", f"this nests over {_MAX_DEPTH} deep", span=span)
            return placed(node, span)
        case None | bool():
            return ast.Literal(value, span=span)
        case int() if value.bit_length() > _MAX_BITS:
            raise misuse("QP301", "this number is too large", span=span)
        case int() | float() if math.isfinite(value):
            if value < 0:
                return ast.Unary("-", ast.Literal(-value, span=span), span=span)
            return ast.Literal(value, span=span)
        case str():
            composition = current()
            if composition is None:
                return ast.Template((value,) if value else (), span=span)
            return composition.template(value, span)
    message = f"{shown(value)} is no value of the language: there are texts, numbers, bools and None"
    raise misuse("QP502", message, span=span)


def binary(op: str, left: object, right: object) -> Symbol:
    composition = current()
    site = composition.file.here() if composition else None
    whole = site.whole if site else NOWHERE
    first, second = (site.operands() if site else None) or (whole, whole)
    return Symbol(ast.Binary(op, convert(left, first), convert(right, second), span=whole))  # type: ignore[arg-type]


def unary(op: str, value: object) -> Symbol:
    composition = current()
    site = composition.file.here() if composition else None
    whole = site.whole if site else NOWHERE
    return Symbol(ast.Unary(op, convert(value, (site and site.operand()) or whole), span=whole))  # type: ignore[arg-type]


def _mark(node: ast.Expr) -> str:
    composition = current()
    if composition is None:
        raise misuse("QP502", "a value of a program can stand in a text only while the program is composed")
    return composition.mark(node)


N = TypeVar("N", int, float)


@final
class Columns:
    """The columns of the rows: `qp.col.score`, or `qp.col["score"]`."""

    @property
    def text(self) -> str:
        """All that was generated since the last `prompt` or `chat`."""
        return cast(str, self["text"])

    @property
    def step(self) -> str:
        """The last stage's piece, without its stop string."""
        return cast(str, self["step"])

    @property
    def finish(self) -> str:
        """Why the last stage ended: `eos`, `stop`, `length` or `match`."""
        return cast(str, self["finish"])

    @property
    def finished(self) -> bool:
        """Whether the row has come to its end."""
        return cast(bool, self["finished"])

    @property
    def logprob(self) -> float:
        """The row's log-probability."""
        return cast(float, self["logprob"])

    @property
    def tokens(self) -> int:
        """How many tokens were sampled for the row."""
        return cast(int, self["tokens"])

    @property
    def group(self) -> int:
        """Which copy that `split` made the row comes of."""
        return cast(int, self["group"])

    @property
    def score(self) -> float:
        """What `score` gave the row."""
        return cast(float, self["score"])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Any:
        composition = current()
        span = composition.file.here().span if composition else NOWHERE
        return Symbol(ast.Name(name, span=span))


col = Columns()
none: Any = Symbol(ast.Literal(None, span=NOWHERE))


def all(condition: bool) -> bool:
    """Whether a condition holds for all rows; for `until` and `return`."""
    return cast(bool, _apply("all", condition))


def any(condition: bool) -> bool:
    """Whether a condition holds for any row; for `until` and `return`."""
    return cast(bool, _apply("any", condition))


def min(*values: N) -> N:
    """The least of several values, or of one value over all rows."""
    return cast(N, _apply("min", *values))


def max(*values: N) -> N:
    """The greatest of several values, or of one value over all rows."""
    return cast(N, _apply("max", *values))


def mean(value: float) -> float:
    """The mean of a value over all rows."""
    return cast(float, _apply("mean", value))


def len(text: str) -> int:
    """How many characters a text has."""
    return cast(int, _apply("len", text))


def not_(condition: bool) -> bool:
    """Whether a condition does not hold: `~condition`, for type checkers that mind what `~` makes of a bool."""
    return cast(bool, unary("not", condition))


def matches(text: str, regex: str) -> bool:
    """Whether a regex is found anywhere in a text."""
    composition = needed("qp.matches")
    site = composition.file.here()
    subject = convert(text, site.argument("text", 0))
    pattern = composition.regex(regex, site, site.argument("regex", 1))
    return cast(bool, Symbol(ast.Matches(subject, pattern, span=site.whole)))


def _apply(function: str, *values: object) -> Symbol:
    site = needed(f"qp.{function}").file.here()
    args = tuple(convert(value, site.argument(None, index)) for index, value in enumerate(values))
    return Symbol(ast.Apply(function, args, span=site.span, name_span=site.head))

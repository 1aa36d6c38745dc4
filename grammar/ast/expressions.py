"""Expressions, and the patterns that `extract` and `matches` look for."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field

from qpdsl.grammar.ast.node import Node
from qpdsl.grammar.source import Span


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A number, a truth value or `none`."""

    value: int | float | bool | None


@dataclass(frozen=True, slots=True)
class Name(Node):
    """A column, a parameter or, where one is expected, a model."""

    id: str


@dataclass(frozen=True, slots=True)
class Path(Node):
    """`item.name`, `steps[0]`: a part of a column or parameter that holds a record or a list.

    `steps` are field names and places in lists, outermost first; places below 0 count from the end.
    """

    base: Name
    steps: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Braced(Node):
    """What stands between braces in a string and is no name, so that it stays as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Template(Node):
    """A string: literal text, `{name}` and `{item.name}` interpolations, in order. A plain string is one `str` part.

    `braced` are the braces on one line that are literal text though no backslash says so; they are in `parts` too.
    """

    parts: tuple[str | Name | Path, ...]
    braced: tuple[Braced, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Regex(Node):
    """`/pattern/`, in the dialect that Python's `re` and llguidance share; checked to compile.

    As an expression it stands in the value of `stop` alone.
    """

    pattern: str


@dataclass(frozen=True, slots=True)
class JsonPath(Node):
    """`.name.other[0]`: field names and list indices, outermost first."""

    steps: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Unary(Node):
    op: typing.Literal["-", "not"]
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary(Node):
    op: typing.Literal["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "in", "and", "or"]
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Matches(Node):
    """`expr matches /regex/`: true where the regex is found anywhere in the text."""

    subject: Expr
    regex: Regex


@dataclass(frozen=True, slots=True)
class Apply(Node):
    """A call of a built-in function. `per` is the column of `mean(score per group)`, of aggregates alone.

    `draw` numbers the draws of a program in reading order, from 0: each `random()` that was checked has one.
    """

    function: str
    args: tuple[Expr, ...]
    per: Name | None = None
    draw: int = field(default=-1, repr=False, kw_only=True)
    name_span: Span = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class ListLiteral(Node):
    """`[a, b]`. In the value of `stop` alone an item may be a regex."""

    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Item(Node):
    """`list[EXPR]`: the item at a place that is worked out; places below 0 count from the end. None beyond the ends."""

    base: Expr
    place: Expr


@dataclass(frozen=True, slots=True)
class Slice(Node):
    """`list[a:b]`: the items, or the characters, from place a to before place b, as Python has them."""

    base: Expr
    start: Expr | None
    stop: Expr | None


@dataclass(frozen=True, slots=True)
class RecordEntry(Node):
    """A field of a record: `name: value`."""

    name: str
    value: Expr
    name_span: Span = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class RecordLiteral(Node):
    """`{chosen: a, rejected: b}`."""

    fields: tuple[RecordEntry, ...]


@dataclass(frozen=True, slots=True)
class Auto(Node):
    """`auto`, or `auto(4, 16, 64)`: a width that a budget chooses, of these; `widths` is empty where none are named."""

    widths: tuple[int, ...] = ()


Expr = (
    Literal
    | Name
    | Path
    | Template
    | Unary
    | Binary
    | Matches
    | Apply
    | ListLiteral
    | Item
    | Slice
    | RecordLiteral
    | Regex
    | Auto
)


def present(**values: Expr | None) -> tuple[tuple[str, Expr], ...]:
    """Those of the named expressions that are there, in their order."""
    return tuple((name, value) for name, value in values.items() if value is not None)

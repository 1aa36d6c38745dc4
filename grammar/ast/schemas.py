"""Types, and the schemas that give them names."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field

from qpdsl.grammar.ast.expressions import Regex
from qpdsl.grammar.ast.node import Node
from qpdsl.grammar.source import Span


@dataclass(frozen=True, slots=True)
class TypeRef(Node):
    """A type by name: text, int, float, bool, a declared schema, and for parameters `messages` and `model`."""

    name: str


@dataclass(frozen=True, slots=True)
class RangeType(Node):
    """`int(0..150)`, `float(..1)`: a number between bounds, both inclusive; None where one is left open."""

    name: typing.Literal["int", "float"]
    low: int | float | None
    high: int | float | None


@dataclass(frozen=True, slots=True)
class TextType(Node):
    """`text(min_length=, max_length=, format=, pattern=)`; at least one is given."""

    min_length: int | None = None
    max_length: int | None = None
    format: str | None = None
    pattern: Regex | None = None


@dataclass(frozen=True, slots=True)
class ChoiceType(Node):
    """`choice("a", "b")`: one of these texts."""

    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListType(Node):
    """`[type]`, `[type](1..3)`: a list, perhaps of so many items: both bounds inclusive, None where left open."""

    item: TypeExpr
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Field(Node):
    """`name: type`, or `name: type?` where it may be absent."""

    name: str
    type: TypeExpr
    optional: bool = False
    name_span: Span = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class RecordType(Node):
    """`{ name: type … }`: an object of exactly these fields."""

    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class UnionType(Node):
    """`Search | Mail`: a record of one of these schemas, whose first field, `kind`, names it."""

    members: tuple[TypeRef, ...]


TypeExpr = TypeRef | RangeType | TextType | ChoiceType | ListType | RecordType | UnionType


@dataclass(frozen=True, slots=True)
class Schema(Node):
    """`schema NAME { … }` (`type`), or `schema NAME from "file.json"` (`path`): one of the two is given."""

    name: str
    type: RecordType | None = None
    path: str | None = None
    path_span: Span | None = field(default=None, compare=False, repr=False)
    name_span: Span = field(compare=False, repr=False, kw_only=True)

"""Values that are known only when a program runs, as Python objects while it is composed.

Inside a function under `@qp.program` a parameter annotated `int` is a `Symbol`, and so is everything that is computed
from it. To a type checker it is an `int`: annotations say what a value will be when the program runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias, final

from qpdsl.api.composition import current, misuse, shown
from qpdsl.api.syntax_trees import NOWHERE, placed
from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import MAX_DEPTH, is_shallow
from qpdsl.grammar.source import Span

_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# How many bits a whole number may have.
_MAX_BITS = 1024
Operator: TypeAlias = "Callable[[Symbol, object], Symbol]"


def _left(op: str) -> Operator:
    """The method of an operator with a symbol on its left."""
    return lambda self, other: binary(op, self, other)


def _right(op: str) -> Operator:
    """The method of an operator with a symbol on its right, and none on its left."""
    return lambda self, other: binary(op, other, self)


@final
class Symbol:
    """A value that is known only when the program runs, held as its expression."""

    __slots__ = ("node", "rows")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: ast.Expr, rows: Any = None) -> None:
        """`rows` are those of the program, where the value is a column that a stage has just made."""
        self.node = node
        self.rows = rows

    def __getattr__(self, name: str) -> Any:
        """A stage of the rows that the column is in: `rows.generate(llm).score(prm)`. Raises AttributeError."""
        if name.startswith("_"):
            raise AttributeError(name)
        if self.rows is None:
            what = f"`{name}` is read of a value that is known only when the program runs"
            raise AttributeError(f'{what}; a field of a record is written `["{name}"]`, a stage `rows.{name}(…)`')
        return getattr(self.rows, name)

    __add__, __radd__ = _left("+"), _right("+")
    __sub__, __rsub__ = _left("-"), _right("-")
    __mul__, __rmul__ = _left("*"), _right("*")
    __truediv__, __rtruediv__ = _left("/"), _right("/")
    __mod__, __rmod__ = _left("%"), _right("%")
    __and__, __rand__ = _left("and"), _right("and")
    __or__, __ror__ = _left("or"), _right("or")
    __lt__ = _left("<")
    __le__ = _left("<=")
    __gt__ = _left(">")
    __ge__ = _left(">=")
    __eq__ = _left("==")  # type: ignore[assignment]
    __ne__ = _left("!=")  # type: ignore[assignment]

    def __invert__(self) -> Symbol:
        return unary("not", self)

    def __neg__(self) -> Symbol:
        return unary("-", self)

    def __pos__(self) -> Symbol:
        return self

    def __getitem__(self, step: object) -> Symbol:
        """A field of a record, a place in a list, or a part: `item["name"]`, `steps[0]`, `steps[i]`, `steps[1:]`."""
        if isinstance(step, slice) and step.step is None:
            start, stop = (None if end is None else convert(end, NOWHERE) for end in (step.start, step.stop))
            return Symbol(ast.Slice(self.node, start, stop, span=self.node.span))
        is_place = type(step) is int and not isinstance(self.node, ast.Name | ast.Path)
        if isinstance(step, Symbol) or is_place:
            return Symbol(ast.Item(self.node, convert(step, NOWHERE), span=self.node.span))
        known = (isinstance(step, str) and _FIELD.fullmatch(step)) or type(step) is int
        match self.node:
            case ast.Name() as base if known:
                steps: tuple[str | int, ...] = ()
            case ast.Path(base=base, steps=steps) if known:
                pass
            case _:
                message = f'only a field (`["name"]`) or a place (`[0]`) of a column or parameter is read, not {step!r}'
                raise misuse("QP501", message, help="`let` makes a column of what is worked out")
        return Symbol(ast.Path(base, (*steps, step), span=self.node.span))  # type: ignore[arg-type]

    def __format__(self, spec: str) -> str:
        if spec:
            raise misuse("QP501", f"`{spec}` cannot format a value that is known only when the program runs")
        return _mark(self.node)

    def __str__(self) -> str:
        return _mark(self.node)

    def __repr__(self) -> str:
        from qpdsl.grammar.format.unparse import format_expr

        text, composition = f"`{format_expr(self.node)}`", current()
        if composition is not None:
            composition.represented.add(text)
        return text

    def __bool__(self) -> bool:
        help = "use `&`, `|` and `~` (or `qp.not_`) for `and`, `or` and `not`, and `rows.where(…)` for `if`"
        raise misuse("QP501", f"whether {self!r} holds is known only when the program runs", help=help)

    def _unknown(self, *_: object) -> NoReturn:
        raise misuse("QP501", f"{self!r} has no value before the program runs")

    __int__ = __float__ = __iter__ = __contains__ = _unknown

    def __index__(self) -> NoReturn:
        text = repr(self)[1:-1]
        help = f"`rows.generate(…, n={text})` draws so many samples, `with rows.repeat({text}):` goes round so often"
        raise misuse("QP501", f"`{text}` has no value before the program runs", help=help)

    def __len__(self) -> int:
        raise misuse("QP501", f"{self!r} has no value before the program runs", help="write `qp.len(…)`")


def convert(value: object, span: Span) -> ast.Expr:
    """A Python value or a symbol as an expression, placed at `span`. Raises QpError, or TypeError outside a program."""
    match value:
        case Symbol(node=node):
            if not is_shallow(node):
                raise misuse("QP103", f"this nests over {MAX_DEPTH} deep", span=span)
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
        case list() | tuple():
            return ast.ListLiteral(tuple(convert(item, span) for item in value), span=span)
        case dict() if value and all(isinstance(name, str) and _FIELD.fullmatch(name) for name in value):
            fields = ((name, convert(item, span)) for name, item in value.items())
            entries = (ast.RecordEntry(name, item, span=span, name_span=span) for name, item in fields)
            return ast.RecordLiteral(tuple(entries), span=span)
    kinds = "texts, numbers, bools, None, and lists and dictionaries of them"
    message = f"{shown(value)} is no value of the language: there are {kinds}"
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

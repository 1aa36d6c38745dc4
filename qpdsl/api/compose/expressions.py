"""The expressions of a program: its columns, and functions over them."""

from __future__ import annotations

import builtins
from typing import Any, TypeVar, cast, final

from qpdsl.api.compose.stage_call import StageCall
from qpdsl.api.compose.symbols import Symbol, convert, unary
from qpdsl.api.composition import current, misuse, needed
from qpdsl.api.syntax_trees import NOWHERE
from qpdsl.grammar import ast

N = TypeVar("N", int, float)
T = TypeVar("T")
_NOTHING = object()


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
        """Why the last stage ended: `eos`, `stop`, `length`, `match`, `context`, `closed` or `thought`."""
        return cast(str, self["finish"])

    @property
    def finished(self) -> bool:
        """Whether the row's text has ended."""
        return cast(bool, self["finished"])

    @property
    def logprob(self) -> builtins.float:
        """The row's log-probability."""
        return cast(builtins.float, self["logprob"])

    @property
    def tokens(self) -> builtins.int:
        """How many tokens were sampled for the row."""
        return cast(builtins.int, self["tokens"])

    @property
    def group(self) -> builtins.int:
        """The number of the copy that `split` made and the row comes from."""
        return cast(builtins.int, self["group"])

    @property
    def thought(self) -> str:
        """What the model thought before its answer; none where it did not."""
        return cast(str, self["thought"])

    @property
    def thought_tokens(self) -> builtins.int:
        """How many tokens were sampled for the row's thought."""
        return cast(builtins.int, self["thought_tokens"])

    @property
    def score(self) -> builtins.float:
        """The score that a `score` stage gave the row."""
        return cast(builtins.float, self["score"])

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


def count(value: object = _NOTHING, *, per: object = None) -> builtins.int:
    """How many rows there are; with a value, those in which it is neither none nor false."""
    return cast(builtins.int, _apply("count", *(() if value is _NOTHING else (value,)), per=per))


def sum(value: N, *, per: object = None) -> N:
    """The sum of a value over all rows, or with `per` over those that share the row's value of that column."""
    return cast(N, _apply("sum", value, per=per))


def mean(value: builtins.float, *, per: object = None) -> builtins.float:
    """The mean of a value over the rows."""
    return cast(builtins.float, _apply("mean", value, per=per))


def std(value: builtins.float, *, per: object = None) -> builtins.float:
    """The standard deviation of a value over the rows, as that of a whole population."""
    return cast(builtins.float, _apply("std", value, per=per))


def quantile(value: builtins.float, share: builtins.float, *, per: object = None) -> builtins.float:
    """The value that a share of the rows is under: 0.5 for the median. It lies between the two values around it."""
    return cast(builtins.float, _apply("quantile", value, share, per=per))


def median(value: builtins.float, *, per: object = None) -> builtins.float:
    """The value in the middle over the rows; of two, what lies between them."""
    return cast(builtins.float, _apply("median", value, per=per))


def number(*, per: object = None) -> builtins.int:
    """The number of the row, from 1."""
    return cast(builtins.int, _apply("number", per=per))


def rank(value: builtins.float, *, per: object = None) -> builtins.int:
    """The place of the row by a value: 1 for the greatest; of equal ones the first row comes first, none last."""
    return cast(builtins.int, _apply("rank", value, per=per))


def random() -> builtins.float:
    """A number between 0 and 1, drawn for each row: a function of the seed, the conversation and the row's path."""
    return cast(builtins.float, _apply("random"))


def min(*values: N, per: object = None) -> N:
    """The least of several values, or of one value over the rows."""
    return cast(N, _apply("min", *values, per=per))


def max(*values: N, per: object = None) -> N:
    """The greatest of several values, or of one value over the rows."""
    return cast(N, _apply("max", *values, per=per))


def all(condition: bool, *, per: object = None) -> bool:
    """Whether a condition holds for all rows."""
    return cast(bool, _apply("all", condition, per=per))


def any(condition: bool, *, per: object = None) -> bool:
    """Whether a condition holds for any row."""
    return cast(bool, _apply("any", condition, per=per))


def first(value: T, *, per: object = None) -> T:
    """A value of the first row."""
    return cast(T, _apply("first", value, per=per))


def last(value: T, *, per: object = None) -> T:
    """A value of the last row."""
    return cast(T, _apply("last", value, per=per))


def list(value: T, *, per: object = None) -> builtins.list[T]:
    """The values of all rows, in their order."""
    return cast("builtins.list[T]", _apply("list", value, per=per))


def int(value: object) -> builtins.int:
    """A text, a number or a bool as a whole number, none where it is not one."""
    return cast(builtins.int, _apply("int", value))


def float(value: object) -> builtins.float:
    """A text, a number or a bool as a number, none where it is not one."""
    return cast(builtins.float, _apply("float", value))


def text(value: object) -> str:
    """Any value as a text: a list or a record as JSON."""
    return cast(str, _apply("text", value))


def len(value: object) -> builtins.int:
    """How many characters a text has, or how many values a list."""
    return cast(builtins.int, _apply("len", value))


def lower(text: str) -> str:
    """A text in lower case."""
    return cast(str, _apply("lower", text))


def upper(text: str) -> str:
    """A text in upper case."""
    return cast(str, _apply("upper", text))


def strip(text: str) -> str:
    """A text without the white space around it."""
    return cast(str, _apply("strip", text))


def contains(whole: object, part: object) -> bool:
    """Whether a text holds another, or a list a value."""
    return cast(bool, _apply("contains", whole, part))


def lines(text: str) -> builtins.list[str]:
    """The lines of a text, without their ends."""
    return cast("builtins.list[str]", _apply("lines", text))


def split(text: str, separator: str) -> builtins.list[str]:
    """The parts of a text between separators."""
    return cast("builtins.list[str]", _apply("split", text, separator))


def replace(text: str, old: str, new: str) -> str:
    """A text with another in each place of a part."""
    return cast(str, _apply("replace", text, old, new))


def sort(values: builtins.list[T]) -> builtins.list[T]:
    """A list of numbers or texts, ascending."""
    return cast("builtins.list[T]", _apply("sort", values))


def join(values: object, separator: str) -> str:
    """The values of a list as one text."""
    return cast(str, _apply("join", values, separator))


def if_(condition: bool, first: T, second: T) -> T:
    """One value where a condition holds, another where it does not."""
    return cast(T, _apply("if", condition, first, second))


def log(value: builtins.float) -> builtins.float:
    """The natural logarithm, none for what is not over 0."""
    return cast(builtins.float, _apply("log", value))


def exp(value: builtins.float) -> builtins.float:
    """e to the power of a value."""
    return cast(builtins.float, _apply("exp", value))


def sqrt(value: builtins.float) -> builtins.float:
    """The square root, none for what is below 0."""
    return cast(builtins.float, _apply("sqrt", value))


def abs(value: N) -> N:
    """A number without its sign."""
    return cast(N, _apply("abs", value))


def round(value: builtins.float, digits: builtins.int | None = None) -> builtins.float:
    """The nearest whole number, or that with so many digits behind the point; halves go to the even one."""
    return cast(builtins.float, _apply("round", value, *(() if digits is None else (digits,))))


def not_(condition: bool) -> bool:
    """Whether a condition does not hold: the same as `~condition`, for type checkers that reject `~` of a bool."""
    return cast(bool, unary("not", condition))


def matches(text: str, regex: str) -> bool:
    """Whether a regex is found anywhere in a text."""
    composition = needed("qp.matches")
    site = composition.file.here()
    subject = convert(text, site.argument("text", 0))
    pattern = composition.regex(regex, site, site.argument("regex", 1))
    return cast(bool, Symbol(ast.Matches(subject, pattern, span=site.whole)))


def _apply(function: str, *values: object, per: object = None) -> Symbol:
    site = needed(f"qp.{function}").file.here()
    args = tuple(convert(value, site.argument(None, index)) for index, value in enumerate(values))
    group = None if per is None else StageCall(needed(f"qp.{function}"), site).column("per", per)
    return Symbol(ast.Apply(function, args, group, span=site.span, name_span=site.head))


def auto(*widths: builtins.int) -> builtins.int:
    """A width that a budget chooses, of these or, where none are named, of 4, 16 and 64.

    It stands in the place of `n`, of the number of `keep` and `split`, of `simulations`, of an argument of a called
    program, or as the default of a parameter. Raises QpError for fewer than two, or where they do not ascend.
    """
    whole = builtins.all(type(width) is builtins.int for width in widths)
    if widths and (builtins.len(widths) < 2 or not whole or [*widths] != sorted({*widths})):
        raise misuse("QP143", "`qp.auto` chooses among whole numbers: two at least, ascending")
    return cast(builtins.int, Symbol(ast.Auto(widths, span=NOWHERE)))

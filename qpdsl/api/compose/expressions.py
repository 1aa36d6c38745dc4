"""The expressions of a program: its columns, and functions over them."""

from __future__ import annotations

from typing import Any, TypeVar, cast, final

from qpdsl.api.compose.symbols import Symbol, convert, unary
from qpdsl.api.composition import current, needed
from qpdsl.api.syntax_trees import NOWHERE
from qpdsl.grammar import ast

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
        """Whether the row's text has ended."""
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
        """The number of the copy that `split` made and the row comes from."""
        return cast(int, self["group"])

    @property
    def score(self) -> float:
        """The score that a `score` stage gave the row."""
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
    """Whether a condition does not hold: the same as `~condition`, for type checkers that reject `~` of a bool."""
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

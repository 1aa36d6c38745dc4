"""The grid of a sweep: programs by lists of values of their parameters (`4,16,64`), each cell one setting of one."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from qpdsl.errors import UsageError, shorten, unknown

_JSON = json.JSONDecoder()

# A sweep is looked at by people, and each of its cells is a saved run or several.
MAX_CELLS = 1000


def split_values(text: str, what: str) -> tuple[str, ...]:
    """The values of a list, parted by commas, each as `--set` takes a single one.

    A value that begins as JSON text, list or object does and goes on to the next comma is one value, whatever commas
    are in it; JSON text stands for the text in it. `what` names the list in messages. Raises UsageError for an empty
    value among others, and for one that is there twice.
    """
    values: list[str] = []
    at = 0
    while at <= len(text):
        value, at, is_quoted = _next(text, at)
        if not value.strip() and not is_quoted and (values or at < len(text)):
            raise UsageError(f"{what} has an empty value in `{shorten(text)}`", 'an empty text is written `""`')
        if value in values:
            raise UsageError(f"{what} names the value `{shorten(value)}` twice")
        values.append(value)
        at += 1
    return tuple(values)


def _next(text: str, start: int) -> tuple[str, int, bool]:
    """The value that begins at `start`, where it ends (at a comma, or with the text), and whether it is quoted."""
    begin = start + len(text[start:]) - len(text[start:].lstrip())
    if text[begin : begin + 1] in ('"', "[", "{"):
        try:
            value, end = _JSON.raw_decode(text, begin)
        except (ValueError, RecursionError):
            pass
        else:
            end += len(text[end:]) - len(text[end:].lstrip())
            if end == len(text) or text[end] == ",":
                is_quoted = isinstance(value, str)
                return (value if is_quoted else text[begin:end].strip()), end, is_quoted
    comma = text.find(",", start)
    end = len(text) if comma < 0 else comma
    return text[start:end], end, False


@dataclass(frozen=True, slots=True)
class Axis:
    """The values that a parameter takes, as written. `program` is the one that it is for, None for all that have it."""

    program: str | None
    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """A program with values for its parameters: `settings` are pairs of a name and a value as written.

    `varied` are the names of those that tell it apart from other cells of the program. `choice` says what is settled of
    a program that leaves something open: a way, or a budget such as `tokens=500`.
    """

    program: str
    settings: tuple[tuple[str, str], ...] = ()
    varied: tuple[str, ...] = ()
    choice: str = ""

    @property
    def parameters(self) -> str:
        """What tells it from the other cells of its program: `n=4 width=2`, or nothing."""
        return " ".join(self._varied())

    @property
    def name(self) -> str:
        """What people call it: `best_of_n(n=4, width=2)`, or the program's name alone."""
        inside = ", ".join(self._varied())
        return f"{self.program}({inside})" if inside else self.program

    def told(self, but: Collection[tuple[str, str]] = ()) -> str:
        """All of its settings but some, and what is settled of it: `n=4 width=2`, or nothing."""
        return " ".join(self._with(pair for pair in self.settings if pair not in but))

    def _varied(self) -> list[str]:
        return self._with(pair for pair in self.settings if pair[0] in self.varied)

    def _with(self, settings: Iterable[tuple[str, str]]) -> list[str]:
        return [*(f"{name}={shorten(value, 24)}" for name, value in settings), *filter(None, [self.choice])]


def read_axes(settings: Iterable[str]) -> list[Axis]:
    """The axes of `[PROGRAM.]NAME=VALUE,…` strings. Raises UsageError, also where two are for the same."""
    axes: list[Axis] = []
    for setting in settings:
        left, sign, values = setting.partition("=")
        program, dot, name = left.strip().rpartition(".")
        if not sign or not name or (dot and not program):
            raise UsageError(f"`--set` takes [PROGRAM.]NAME=VALUE,…, not `{shorten(setting)}`")
        axis = Axis(program or None, name, split_values(values, f"`--set {left.strip()}=…`"))
        if any((axis.program, axis.name) == (other.program, other.name) for other in axes):
            raise UsageError(f"`--set` gives `{left.strip()}` twice")
        axes.append(axis)
    return axes


def cells_of(programs: Mapping[str, Collection[str]], axes: Sequence[Axis]) -> list[Cell]:
    """Every cell of the grid: program by program, and the last axis fastest.

    `programs` has the parameters of each program by its name. An axis does not multiply programs that lack its
    parameter; one for a program goes before one for all. Raises UsageError for an axis that no program has, and for
    more than `MAX_CELLS` cells.
    """
    _check(programs, axes)
    cells: list[Cell] = []
    for program, params in programs.items():
        own = list(_axes_of(program, params, axes))
        if len(cells) + math.prod(len(axis.values) for axis in own) > MAX_CELLS:
            raise UsageError(f"the grid has more than {MAX_CELLS:,} cells", "leave out some values")
        varied = tuple(axis.name for axis in own if len(axis.values) > 1)
        for values in product(*(axis.values for axis in own)):
            settings = tuple((axis.name, value) for axis, value in zip(own, values, strict=True))
            cells.append(Cell(program, settings, varied))
    return cells


def _axes_of(program: str, params: Collection[str], axes: Sequence[Axis]) -> Iterator[Axis]:
    own = {axis.name for axis in axes if axis.program == program}
    for axis in axes:
        if axis.program == program or (axis.program is None and axis.name in params and axis.name not in own):
            yield axis


def _check(programs: Mapping[str, Collection[str]], axes: Sequence[Axis]) -> None:
    everything = sorted({param for params in programs.values() for param in params})
    for axis in axes:
        if axis.program is None:
            if axis.name not in everything:
                raise UsageError(f"`--set`: {unknown(axis.name, everything, 'no program has the parameter')}")
        elif axis.program not in programs:
            raise UsageError(
                f"`--set {axis.program}.{axis.name}`: {unknown(axis.program, programs, 'the sweep has no program')}"
            )
        elif axis.name not in programs[axis.program]:
            lead = f"program `{axis.program}` has no parameter"
            raise UsageError(f"`--set`: {unknown(axis.name, sorted(programs[axis.program]), lead)}")

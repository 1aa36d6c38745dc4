"""The rows between operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qpdsl.executor.events.events import Path
from qpdsl.executor.requests.draw_figures import DrawFigures
from qpdsl.executor.text.context import Context, Piece
from qpdsl.planner.values.value import Value

# What a program can return: a value, or the record in a JSON text.
JsonValue = Value | dict[str, Any] | list[Any]


@dataclass(frozen=True, slots=True)
class Generated:
    """What was generated in a row since its context was set. Columns may say otherwise: a program can assign them.

    `tokens` are those of `model`, without eos. `said` is what a program added behind them, which no model has read yet:
    pieces of text, and whether the program's author wrote them. `text` is the text of both. `logprob` is the sum over
    the `sampled` tokens. `least` is the least log-probability of one of them, and `figures` are those of each, None
    where some have none. `incomplete`: the text had to satisfy a constraint and does not: it was cut off before, or it
    is a record with the fault `invalid`. `closed`: a search has given the row up as it is, and its score stays.
    """

    model: str = ""
    tokens: tuple[int, ...] = ()
    text: str = ""
    finished: bool = False
    logprob: float = 0.0
    sampled: int = 0
    incomplete: bool = False
    invalid: str | None = None
    closed: bool = False
    said: tuple[Piece, ...] = ()
    least: float | None = None
    figures: tuple[DrawFigures, ...] | None = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate: its context, its path through the fan-outs, its columns, and what was generated."""

    context: Context | None
    path: Path
    columns: Mapping[str, Value]
    generated: Generated = Generated()

    def with_column(self, name: str, value: Value) -> Row:
        return Row(self.context, self.path, {**self.columns, name: value}, self.generated)


Candidates = tuple[Row, ...]

# The columns of a row whose context was just set.
FRESH: Mapping[str, Value] = {
    "text": "",
    "step": "",
    "finish": None,
    "finished": False,
    "logprob": 0.0,
    "tokens": 0,
    "group": 0,
}

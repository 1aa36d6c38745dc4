"""The rows between operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qpdsl.executor.events.events import Path
from qpdsl.executor.text.context import Context
from qpdsl.planner.plan.evaluate import Value

# What a program can give back: a value, or the record in a JSON text.
JsonValue = Value | dict[str, Any] | list[Any]


@dataclass(frozen=True, slots=True)
class Generated:
    """What a row has been given since its context was set, whatever its columns say: a program may assign those.

    `tokens` are of `model`, eos left out; `text` is theirs. `logprob` sums over the `sampled` tokens. `incomplete` says
    that the text was to be held to a constraint and was cut off before it was whole, `closed` that a search has given
    the row up as it stands, its score included.
    """

    model: str = ""
    tokens: tuple[int, ...] = ()
    text: str = ""
    finished: bool = False
    logprob: float = 0.0
    sampled: int = 0
    incomplete: bool = False
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate: its context, its path through the fan-outs, its columns, and what they were made from."""

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

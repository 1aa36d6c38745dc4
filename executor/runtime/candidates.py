"""The rows between operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from qpdsl.executor.runtime.context import Context
from qpdsl.executor.runtime.keys import Path
from qpdsl.planner.expr import Value


@dataclass(frozen=True, slots=True)
class Generated:
    """Tokens that `model` has added to a row since its context was set (eos left out)."""

    model: str
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate: its context, its path through the fan-outs, and its columns."""

    context: Context | None
    path: Path
    columns: Mapping[str, Value]
    generated: Generated | None = None

    def with_column(self, name: str, value: Value) -> Row:
        return replace(self, columns={**self.columns, name: value})


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

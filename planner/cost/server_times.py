"""How long models on servers elsewhere take, by what earlier runs saw.

Nothing can be known of a server's device, and others may use it as well. So nothing is predicted from arithmetic: there
are the seconds that operators waited, by how many problems ran at once, and without earlier runs there is no estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from qpdsl.grammar.model_id import is_remote
from qpdsl.planner.cost.run_figures import RunFigures
from qpdsl.planner.cost.validation import mapping, record
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan, everything, models_of

# Sums of more waiting operators than this count half when new ones come, so that a change shows.
_MAX_RUNS = 4096.0


@dataclass(frozen=True, slots=True)
class ServerWaits:
    """What operators waited for one model, in sums over their runs.

    `runs` that drew waited `drawing` seconds for their longest samples, of `tokens` in all; `reads` that drew nothing
    waited `reading` seconds. They sent `requests`. In `seconds` of wall time `drawn` tokens came.
    """

    runs: float = 0.0
    tokens: float = 0.0
    drawing: float = 0.0
    reads: float = 0.0
    reading: float = 0.0
    requests: float = 0.0
    drawn: float = 0.0
    seconds: float = 0.0

    def plus(self, other: ServerWaits) -> ServerWaits:
        """Both together, the other's whole and these faded where there are many."""
        weight = 0.5 if self.runs + self.reads > _MAX_RUNS else 1.0
        return ServerWaits(
            **{part.name: getattr(self, part.name) * weight + getattr(other, part.name) for part in fields(self)}
        )

    def wait(self, tokens: float) -> float | None:
        """Seconds of a run whose longest sample has so many tokens, 0 for one that reads; None where none was seen."""
        if tokens:
            return self.drawing / self.tokens * tokens if self.tokens else None
        return self.reading / self.reads if self.reads else None

    @property
    def each(self) -> float:
        """Seconds that an operator waited, on average."""
        return (self.drawing + self.reading) / max(self.runs + self.reads, 1e-9)

    @property
    def rate(self) -> float | None:
        """Tokens a second, of all samples together."""
        return self.drawn / self.seconds if self.seconds and self.drawn else None


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """The waits of one model, by how many problems ran at once: the power of two that is not greater."""

    levels: Mapping[int, ServerWaits] = field(default_factory=dict)

    def plus(self, in_flight: int, waits: ServerWaits) -> ServerTimes:
        level = _level(in_flight)
        return ServerTimes({**self.levels, level: self.levels.get(level, ServerWaits()).plus(waits)})

    def joined(self, later: ServerTimes) -> ServerTimes:
        """Both together, the later ones whole."""
        levels = {level: self.levels.get(level, ServerWaits()).plus(waits) for level, waits in later.levels.items()}
        return ServerTimes({**self.levels, **levels})

    def at(self, in_flight: float) -> ServerWaits | None:
        """Those at the nearest number of problems that was seen; None where none was."""
        level = _level(int(in_flight))
        nearest = min(self.levels, key=lambda seen: (max(seen, level) / min(seen, level), seen), default=None)
        return None if nearest is None else self.levels[nearest]


def waits_of(plan: PhysicalPlan, figures: RunFigures) -> dict[str, ServerWaits]:
    """What a run waited for each model on a server. Answers that an earlier run had kept say nothing of a server."""
    found: dict[str, ServerWaits] = {}
    for node in everything(plan.ops):
        model, own = server_of(node, plan), figures.operators.get(node.id)
        if model is None or own is None or own.count("replayed") or not own.count("requests"):
            continue
        tokens, drawn = own.count("longest"), own.sampled_tokens
        waits = (
            ServerWaits(runs=own.runs, tokens=tokens, drawing=own.seconds, requests=own.count("requests"), drawn=drawn)
            if tokens
            else ServerWaits(reads=own.runs, reading=own.seconds, requests=own.count("requests"))
        )
        found[model] = found.get(model, ServerWaits()).plus(waits)
    return {model: waits.plus(ServerWaits(seconds=figures.seconds)) for model, waits in found.items()}


def server_of(node: PhysicalOp, plan: PhysicalPlan) -> str | None:
    """The id of the model on a server that an operator asks; None where there is none, or more models than one."""
    ids = [plan.models.get(name, name) for name in models_of(node.op)]
    return ids[0] if len(ids) == 1 and is_remote(ids[0]) else None


def server_times_from(data: Any) -> ServerTimes:
    """Raises ValueError for damaged data."""
    levels = {int(level): record(ServerWaits, waits) for level, waits in mapping(data)["levels"].items()}
    if any(level < 1 for level in levels):
        raise ValueError("a number of problems is expected")
    return ServerTimes(levels)


def _level(in_flight: int) -> int:
    return 1 << (max(in_flight, 1).bit_length() - 1)

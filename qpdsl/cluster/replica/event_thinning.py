"""Which events of a replica are sent on: its steps summed up, and not more of the others than can be looked at.

The dashboard of a run shows each replica as a model of its own, with tokens a second, pages and waits. Candidates are
not sent, nor are rows, which whoever gives them out tells itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from qpdsl.executor.events.events import (
    REPLICA_SIGN,
    EngineFigures,
    EngineStepped,
    Event,
    InstanceDone,
    InstanceStarted,
    Lost,
    OperatorDone,
    WayTried,
)
from qpdsl.executor.requests.latencies import Waits

EVERY_SECONDS = 0.25
# Of the events of rows and operators, in that time.
_MOST = 50
# Of the latest step, for dashboards and for `/metrics`.
_FIGURES = (
    *("sequences", "capacity", "running", "cached_tokens", "evictions", "leased_bytes", "resident_bytes"),
    *("live_bytes", "cached_bytes", "free_bytes", "weight_bytes", "activation_bytes"),
)
_SENT = (InstanceStarted, WayTried, InstanceDone, OperatorDone)


@dataclass(slots=True)
class _Steps:
    """Sums over the steps of one model since they were last sent."""

    prefill: int = 0
    decode: int = 0
    seconds: float = 0.0
    steps: int = 0
    waits: Waits = field(default_factory=Waits)


class EventThinning:
    """A reader of a session's events that keeps what is to be sent next. `name` is that of the replica."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._steps: dict[str, _Steps] = {}
        self._latest: dict[str, EngineStepped] = {}
        self._others: list[Event] = []
        self._left_out = 0
        self._sent = time.monotonic()

    def see(self, event: Event) -> None:
        if isinstance(event, EngineStepped):
            report = event.report
            sums = self._steps.setdefault(report.model, _Steps())
            sums.prefill += report.prefill_tokens
            sums.decode += report.decode_tokens
            sums.steps += 1
            sums.seconds += getattr(report, "seconds", 0.0)
            sums.waits.add(report.first_waits, report.waits)
            self._latest[report.model] = event
        elif isinstance(event, _SENT):
            if len(self._others) < _MOST:
                self._others.append(event)
            else:
                self._left_out += 1

    def due(self, now: float) -> tuple[Event, ...]:
        """What is to be sent now, by the monotonic clock: nothing until a moment after the last time."""
        return self.rest() if now - self._sent >= EVERY_SECONDS else ()

    def rest(self) -> tuple[Event, ...]:
        """All that is kept."""
        self._sent = time.monotonic()
        steps = [self._stepped(model, sums) for model, sums in self._steps.items()]
        lost = [Lost(count=self._left_out)] if self._left_out else []
        events = (*self._others, *steps, *lost)
        self._steps, self._others, self._left_out = {}, [], 0
        return events

    def _stepped(self, model: str, sums: _Steps) -> EngineStepped:
        latest = self._latest[model]
        report = latest.report
        figures = EngineFigures(
            model=f"{model}{REPLICA_SIGN}{self._name}",
            prefill_tokens=sums.prefill,
            decode_tokens=sums.decode,
            waiting=report.waiting,
            pages_held=report.pages_held,
            pages=report.pages,
            preemptions=report.preemptions,
            others={
                "seconds": sums.seconds,
                "steps": sums.steps,
                **{name: getattr(report, name) for name in _FIGURES if hasattr(report, name)},
            },
            first_waits=dict(sums.waits.first),
            waits=dict(sums.waits.between),
        )
        return EngineStepped(at=latest.at, report=figures)

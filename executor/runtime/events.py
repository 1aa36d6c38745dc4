"""The one stream of events that progress bars, EXPLAIN ANALYZE, traces and dashboards read."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from qpdsl.executor.engine.engine import StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`at`: seconds on the monotonic clock."""

    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStarted(Event):
    """A row of the input began to run."""

    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDone(Event):
    """One run of one operator: rows in and out, tokens it submitted and sampled, and how long it waited for them."""

    instance: str
    operator: str
    rows_in: int
    rows_out: int
    prompt_tokens: int
    sampled_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStepped(Event):
    """One forward of one model."""

    report: StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceDone(Event):
    """A row of the input ended; `error` says why where it failed."""

    instance: str
    prompt_tokens: int
    sampled_tokens: int
    seconds: float
    error: str | None


class EventStream:
    """A bounded ring of the latest events, and the readers that see each as it comes."""

    def __init__(self, capacity: int = 65536) -> None:
        self.recent: deque[Event] = deque(maxlen=capacity)
        self._readers: list[Callable[[Event], None]] = []

    def subscribe(self, reader: Callable[[Event], None]) -> None:
        self._readers.append(reader)

    def emit(self, event: Event) -> None:
        self.recent.append(event)
        for reader in self._readers:
            reader(event)

"""The stream of events of a run: a bounded history, and the readers that see each event as it comes."""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable

from qpdsl.executor.events.events import (
    CellReached,
    Detail,
    Earlier,
    EngineFigures,
    EngineStepped,
    Estimated,
    Event,
    InputListed,
    ModelsLoaded,
    OperatorDone,
    Preparing,
    ProcessStarted,
    ReplicaGone,
    RequestReached,
    RowDone,
    RunEnded,
    RunSaved,
    RunStarted,
)

Reader = Callable[[Event], None]
# Makes events, from values that do not change.
MadeLater = Callable[[], Iterable[Event]]
_LASTING = frozenset(
    (
        *(ProcessStarted, Preparing, RunStarted, InputListed, RunSaved, ModelsLoaded, Estimated, RunEnded),
        ReplicaGone,
    )
)
# So many events wait for patient readers.
_BATCH = 256


class EventStream:
    """Emits from one thread; readers may come and go from any thread.

    To make, keep and read an event between two steps of an engine takes three times as long as among its like, as the
    processor's caches are the engine's. So while all readers are patient, events wait: until there are many, until one
    tells of the run as a whole, or until somebody wants to know.

    The history holds the events of the run as a whole, the latest of each cell, the latest `capacity` events of rows
    that ended and of requests, `capacity` other events and `details` heavy ones. Events that fall out are summed up
    (`Earlier`). `zero` is the stream's beginning in seconds on the monotonic clock.
    """

    def __init__(self, capacity: int = 65536, details: int = 2048) -> None:
        self.zero = time.monotonic()
        self.recent: deque[Event] = deque()
        self._capacity = capacity
        self._lasting: list[Event] = []
        self._cells: dict[str, Event] = {}
        self._rows: deque[Event] = deque(maxlen=capacity)
        self._details: deque[Event] = deque(maxlen=details)
        self._earlier = _Sums()
        self._readers: tuple[tuple[Reader, bool, bool], ...] = ()
        self._waiting: deque[Event | MadeLater] = deque()
        self._prompt = False
        self._lock = threading.Lock()
        self.detailed = False

    @property
    def ended(self) -> bool:
        """Whether the end of the run was emitted."""
        return any(isinstance(event, RunEnded) for event in self._lasting)

    def subscribe(
        self, reader: Reader, *, details: bool = False, history: bool = False, patient: bool = False
    ) -> Callable[[], None]:
        """Calls `reader` with every event from now on; with `history`, first with the events of the history.

        `detailed` is true while a reader wants `details`. A `patient` one may be called later, and from whatever thread
        calls `deliver`. Returns a function that ends the subscription.
        """
        entry = (reader, details, patient)
        with self._lock:
            self._hand_on_waiting()
            if history:
                for event in self._history():
                    reader(event)
            self._set_readers((*self._readers, entry))
            self._hand_on_waiting()

        def unsubscribe() -> None:
            with self._lock:
                self._hand_on_waiting()
                self._set_readers(tuple(other for other in self._readers if other is not entry))

        return unsubscribe

    def emit(self, event: Event | MadeLater) -> None:
        """`event` may be what makes some, once they are handed on."""
        self._waiting.append(event)
        # Who subscribes in another thread says that it is prompt before it takes what waits.
        if self._prompt or len(self._waiting) >= _BATCH or type(event) in _LASTING:
            self.deliver()

    def deliver(self, *, blocking: bool = True) -> None:
        """Patient readers have all events so far; not if another thread is at it, and this is not to be `blocking`."""
        # Of what no longer waits another thread may still be handing on the last.
        if self._lock.acquire(blocking):
            try:
                self._hand_on_waiting()
            finally:
                self._lock.release()

    def _set_readers(self, readers: tuple[tuple[Reader, bool, bool], ...]) -> None:
        self._readers = readers
        self.detailed = any(details for _, details, _ in readers)
        self._prompt = not all(patient for _, _, patient in readers)

    def _hand_on_waiting(self) -> None:
        while self._waiting:
            self._hand_on(self._waiting.popleft())

    def _hand_on(self, event: Event | MadeLater) -> None:
        if not isinstance(event, Event):
            for made in event():
                self._hand_on(made)
            return
        self._keep(event)
        heavy = isinstance(event, Detail)
        for reader, details, _ in self._readers:
            if details or not heavy:
                reader(event)

    def _keep(self, event: Event) -> None:
        if isinstance(event, Detail):
            self._earlier.events += len(self._details) == self._details.maxlen
            self._details.append(event)
        elif isinstance(event, CellReached):
            self._cells[event.cell] = event
        elif isinstance(event, (RowDone, RequestReached)):
            self._earlier.rows += len(self._rows) == self._rows.maxlen
            self._rows.append(event)
        elif type(event) in _LASTING:
            self._lasting.append(event)
        else:
            if len(self.recent) == self._capacity:
                self._earlier.add(self.recent.popleft())
            self.recent.append(event)

    def _history(self) -> list[Event]:
        cells = sorted(self._cells.values(), key=_when)
        events = list(heapq.merge(self._lasting, cells, self._rows, self._details, self.recent, key=_when))
        if not self._earlier.events and not self._earlier.rows:
            return events
        first = sum(isinstance(event, (ProcessStarted, RunStarted)) for event in events[:1])
        return [*events[:first], self._earlier.event(events[0].at), *events[first:]]


def _when(event: Event) -> float:
    return event.at


class _Sums:
    """Sums over the events that fell out of the history."""

    def __init__(self) -> None:
        self.events = 0
        self.rows = 0
        self._operators: dict[str, list[float]] = {}
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._models: dict[str, list[float]] = {}

    def add(self, event: Event) -> None:
        self.events += 1
        if isinstance(event, EngineStepped):
            report = event.report
            seconds = report.others.get("seconds", 0.0) if isinstance(report, EngineFigures) else report.seconds
            own = self._models.setdefault(report.model, [0.0] * 4)
            for index, value in enumerate((1, report.prefill_tokens, report.decode_tokens, seconds)):
                own[index] += value
        elif isinstance(event, OperatorDone) and not event.baseline:
            sums = self._operators.setdefault(event.operator, [0.0] * 7)
            counts = (1, event.rows_in, event.rows_out, event.prompt_tokens, event.sampled_tokens, event.cached_tokens)
            for index, value in enumerate((*counts, event.seconds)):
                sums[index] += value
            self._counts[event.operator].update(event.counts)

    def event(self, at: float) -> Earlier:
        operators = {operator: tuple(sums) for operator, sums in self._operators.items()}
        return Earlier(
            at=at,
            events=self.events,
            operators=operators,
            rows=self.rows,
            counts={operator: dict(counts) for operator, counts in self._counts.items()},
            models={model: tuple(sums) for model, sums in self._models.items()},
        )

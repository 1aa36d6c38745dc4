"""A run in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format", Google, 2016: complete events (`X`), counters (`C`), names (`M`); times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from qpdsl.executor.events import events
from qpdsl.executor.events.events import EngineFigures, Event
from qpdsl.grammar.printable import printable
from qpdsl.tui.state.run_state import RunState

_MODELS, _ROWS = 1, 2


def chrome_trace(recording: Sequence[Event]) -> Iterator[str]:
    """The lines of the file: one JSON array, an event a line."""
    records = list(_records(recording))
    yield "["
    for number, record in enumerate(records):
        yield printable(json.dumps(record, ensure_ascii=False)) + ("," if number + 1 < len(records) else "")
    yield "]"


def begins_chrome_trace(file: BinaryIO) -> bool:
    """Whether an open file is what `chrome_trace` makes."""
    first = json.dumps(_name("process_name", _MODELS, 0, "models"))
    return file.read(len(first) + 2) == f"[\n{first}".encode()


def _records(recording: Sequence[Event]) -> Iterator[dict[str, Any]]:
    yield _name("process_name", _MODELS, 0, "models")
    yield _name("process_name", _ROWS, 0, "rows")
    lanes = _Lanes()
    state = RunState()
    models: dict[str, int] = {}
    started: dict[tuple[str, str], list[float]] = {}
    for event in recording:
        state.add(event)
        if isinstance(event, events.EngineStepped):
            model = event.report.model
            if model not in models:
                models[model] = len(models) + 1
                yield _name("thread_name", _MODELS, models[model], model)
            yield from _step(event, models[model])
        elif isinstance(event, events.InstanceStarted) and not event.baseline:
            lane, new = lanes.take(event.instance)
            if new:
                yield _name("thread_name", _ROWS, lane, f"lane {lane}")
            started[event.instance, ""] = [event.at]
        elif isinstance(event, events.OperatorStarted):
            started.setdefault((event.instance, event.operator), []).append(event.at)
        elif isinstance(event, events.OperatorDone) and not event.baseline:
            starts = started.get((event.instance, event.operator))
            at = starts.pop() if starts and event.operator else event.at - event.seconds
            lane, _ = lanes.take(event.instance)
            yield _span(_text(state, event.operator), _ROWS, lane, at, event.at - at, _operator(event))
        elif isinstance(event, events.InstanceDone) and not event.baseline:
            lane, _ = lanes.take(event.instance)
            at, *_ = started.pop((event.instance, ""), [event.at - event.seconds])
            facts = {"answer": event.answer, "score": event.score, "error": event.error}
            yield _span(event.instance, _ROWS, lane, at, event.at - at, facts)
            lanes.free(event.instance)


def _step(event: events.EngineStepped, thread: int) -> Iterator[dict[str, Any]]:
    report = event.report
    assert isinstance(report, EngineFigures)
    seconds = report.others.get("seconds", 0.0)
    facts = {
        "prefill tokens": report.prefill_tokens,
        "decode tokens": report.decode_tokens,
        "waiting": report.waiting,
        **report.others,
    }
    kind = "prefill" if not report.decode_tokens else "decode" if not report.prefill_tokens else "prefill + decode"
    yield _span(kind, _MODELS, thread, event.at - seconds, seconds, facts)
    yield {
        "ph": "C",
        "name": f"KV pages {report.model}",
        "pid": _MODELS,
        "ts": _micro(event.at),
        "args": {"held": report.pages_held},
    }


def _operator(event: events.OperatorDone) -> dict[str, Any]:
    return {
        "rows in": event.rows_in,
        "rows out": event.rows_out,
        "prompt tokens": event.prompt_tokens,
        "cached tokens": event.cached_tokens,
        "sampled tokens": event.sampled_tokens,
        "rounds": ".".join(map(str, event.rounds)),
    }


def _text(state: RunState, operator: str) -> str:
    lines = state.plan.lines if state.plan else ()
    return next((line.text for line in lines if line.id == operator), operator)


def _span(name: str, process: int, thread: int, at: float, seconds: float, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": _micro(max(at, 0.0)),
        "dur": _micro(max(seconds, 0.0)),
        "args": facts,
    }


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _micro(seconds: float) -> float:
    return round(seconds * 1_000_000, 1)


class _Lanes:
    """The lanes of rows that run side by side. A row that ends frees its lane for the next."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._free: list[int] = []
        self._count = 0

    def take(self, instance: str) -> tuple[int, bool]:
        """The row's lane, and whether it is a new one."""
        if instance in self._of:
            return self._of[instance], False
        new = not self._free
        if new:
            self._count += 1
            self._free.append(self._count)
        self._of[instance] = lane = min(self._free)
        self._free.remove(lane)
        return lane, new

    def free(self, instance: str) -> None:
        self._free.append(self._of.pop(instance))

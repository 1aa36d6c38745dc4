"""A command driven as its user would, in this process, and whoever watches it: from the start, from its middle on, and
as it is played again. `faults_of` says, in words, where their screens differ from what the command printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest.mock import patch

from qpdsl.cli import main
from qpdsl.cli.exits import Exit
from qpdsl.cli.runs.compared_runs import ComparedRuns
from qpdsl.executor.events.codec import decode, encode
from qpdsl.executor.events.events import CellReached, Event, OperatorDone, RowDone
from qpdsl.executor.events.stream import EventStream
from qpdsl.tui.state.event_source import EventSource
from tests.support.tui.held_source import HeldSource
from tests.support.tui.printed import Screens, read

WAYS = ("live", "late", "replayed")
# Events of this kind that are over before somebody comes late.
_EARLY = 3


@dataclass(frozen=True)
class Driven:
    """What a command came to: its arguments, its exit code, what it printed on stdout (JSON) and on stderr, a record
    for each row, and the watchers by how they came to it.
    """

    arguments: Sequence[str]
    code: int
    printed: Mapping[str, Any]
    notes: str
    records: Sequence[Mapping[str, Any]]
    watchers: Mapping[str, EventSource | Path]

    @property
    def refusal(self) -> str:
        """Why it did not run, empty where it did."""
        if self.code in (Exit.OK, Exit.ROW_FAILED):
            return ""
        lines = [line for line in self.notes.splitlines() if "error" in line]
        return lines[-1] if lines else self.notes.strip() or f"exit code {self.code}"


class _Watchers:
    """Two who watch a process of this one: the first from its first event on, the second once some things are over."""

    def __init__(self) -> None:
        self.live, self.late = HeldSource(), HeldSource()
        self._over = 0
        self._stream: EventStream | None = None

    def stream(self, *bounds: int) -> EventStream:
        """The stream of the process, which is being watched."""
        self._stream = stream = EventStream(*bounds)
        stream.subscribe(self._see, details=True)
        return stream

    def come_late(self) -> None:
        """Has the second one come now, if it has not come yet."""
        if self._stream is not None and self._over >= 0:
            self._over = -1
            self._stream.subscribe(lambda event: self.late.state.add(self._read(event)), details=True, history=True)

    def _see(self, event: Event) -> None:
        self.live.state.add(self._read(event))
        if self._over >= 0 and isinstance(event, (OperatorDone, RowDone, CellReached)):
            self._over += 1
            if self._over >= _EARLY:
                # The stream is busy with this event, and before the rows run there is no loop.
                with contextlib.suppress(RuntimeError):
                    asyncio.get_running_loop().call_soon(self.come_late)

    def _read(self, event: Event) -> Event:
        """The event as it comes over a socket."""
        assert self._stream is not None
        return decode(encode(event, self._stream.zero))


def drive(folder: Path, command: str, *arguments: str) -> Driven:
    """Runs `qpdsl run` over rows, or `qpdsl eval`; what it writes lies in `folder`."""
    trace, output = folder / "trace.jsonl", folder / "out.jsonl"
    for path in (trace, output):
        path.unlink(missing_ok=True)
    printed = ("--json", "--output", str(output), "--no-statistics") if command == "run" else ("--format", "json")
    watchers, out, err = _Watchers(), io.StringIO(), io.StringIO()
    with (
        patch("qpdsl.cli.watched.EventStream", watchers.stream),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main([command, *arguments, *printed, "--trace", str(trace)])
    watchers.come_late()
    records = [json.loads(line) for line in output.read_text("utf-8").splitlines()] if output.exists() else []
    by_name = dict(zip(WAYS, (watchers.live, watchers.late, trace), strict=True))
    return Driven(arguments, code, json.loads(out.getvalue() or "{}"), err.getvalue(), records, by_name)


def faults_of(driven: Driven, *, ways: Sequence[str] = WAYS, beside: bool = False) -> list[str]:
    """Where screens differ from what the command printed, from each other and, `beside` a saved run, from `qpdsl diff`.

    Of the figures that depend on time none is looked at.
    """
    runs = ComparedRuns() if beside else None
    shown = {way: asyncio.run(read(driven.watchers[way], len(driven.records), runs)) for way in ways}
    faults = [f"{way}: {fault}" for way, own in shown.items() for fault in _apart(driven, own, beside)]
    first = shown[ways[0]].bodies
    for way in ways[1:]:
        other = shown[way].bodies
        differing = [name for name, text in first.items() if text != other[name]]
        faults += [f"{name}: {ways[0]} {_first_apart(first[name], other[name])} {way}" for name in differing]
    return faults


def _apart(driven: Driven, shown: Screens, beside: bool) -> Iterator[str]:
    told = _told_of_sweep(driven) if "cells" in driven.printed else _told_of_run(driven)
    for name, value in told.items():
        if not _alike(seen := shown.figures.get(name), value):
            yield f"{name}: {seen!r} on the screens, {value!r} printed"
    if beside:
        with contextlib.redirect_stdout(out := io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            main(["diff", str(shown.figures["beside"]), "last", "--format", "json"])
        paired = json.loads(out.getvalue() or "{}")
        for name in ("gained", "lost"):
            if name not in paired or shown.figures[name] != len(paired[name]):
                yield f"{name}: {shown.figures[name]!r} on Compare, {paired.get(name)!r} by `diff`"


def _alike(seen: Any, printed: Any) -> bool:
    """Whether a figure of the screens is that which was printed, as far as it is shown: a float may be rounded."""
    if isinstance(printed, list) and isinstance(seen, list):
        return len(seen) == len(printed) and all(map(_alike, seen, printed))
    if isinstance(printed, dict) and isinstance(seen, dict):
        return all(_alike(seen.get(name), value) for name, value in printed.items())
    if isinstance(printed, float) and isinstance(seen, float):
        return abs(seen - printed) <= max(0.51, 0.006 * printed)
    return bool(seen == printed)


def _first_apart(one: str, other: str) -> str:
    """The first lines in which two texts differ, with a sign between."""
    pairs = zip_longest(one.splitlines(), other.splitlines(), fillvalue="")
    return next(f"{mine.split()} / {theirs.split()}" for mine, theirs in pairs if mine != theirs)


def _told_of_run(driven: Driven) -> dict[str, Any]:
    """What a run's summary and records say, by the names of the screens' figures."""
    summary, records = driven.printed, driven.records
    rows, failed = summary["rows"], summary["failed"]
    found = "none" if "--cluster" in driven.arguments else "answer"
    told = {
        "phase": "all failed" if failed == rows else "done",
        "rows": (rows, rows),
        "failed in the header": failed,
        "failed": failed,
        "without an answer": summary.get("unanswered", 0),
        "at work": 0,
        "tokens in": [record["tokens_in"] for record in records],
        "tokens out": [record["tokens_out"] for record in records],
        "tokens in all": summary["tokens_in"] + summary["tokens_out"],
        "searched": ["failed" if "error" in record or "unanswered" in record else found for record in records],
    }
    if "correct" in summary:
        told["right"] = summary["correct"]
        told["share right"] = 100 * summary["correct"] / summary["compared"]
    if "greedy_correct" in summary:
        told["greedy right"] = 100 * summary["greedy_correct"] / summary["greedy_compared"]
    if "servers" in summary:
        servers = summary["servers"]
        told |= {"requests": servers["requests"], "sent again": servers["retries"]}
        told["tokens at servers"] = [float(servers[name]) for name in ("tokens_in", "tokens_out")]
    return told


def _told_of_sweep(driven: Driven) -> dict[str, Any]:
    """What the table of a sweep says, likewise."""
    cells = driven.printed["cells"]
    rows = [cell["problems"] * cell["seeds"] for cell in cells]
    return {
        "phase": "done",
        "cells": [
            {
                "rows": (own, own),
                "failed": cell["failed"],
                "right": None if cell["accuracy"] is None else 100.0 * cell["accuracy"],
                "tokens a row": float(cell["tokens"]),
            }
            for own, cell in zip(rows, cells, strict=True)
        ],
        "rows": (sum(rows), sum(rows)),
        "failed in the header": sum(cell["failed"] for cell in cells),
    }

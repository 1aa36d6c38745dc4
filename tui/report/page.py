"""The page of a run: one file that loads nothing, in which all is text already, for browsers, printers and readers.

It has few enough points that a browser draws them at once, however long the run was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from qpdsl.executor.events.events import Event
from qpdsl.grammar.printable import one_line
from qpdsl.tui.report.elements import framed, paragraphs, text
from qpdsl.tui.report.pictures import Forwards
from qpdsl.tui.report.sections import run_parts
from qpdsl.tui.state.compare import OtherName, OtherRun, OtherRuns, alike, common_rows, knows_itself
from qpdsl.tui.state.run_state import RunState

_MARK = b'<meta name="generator" content="qpdsl">'
_HEAD = 1024
_PHASES = {"done": "✔ done", "failed": "✖ failed", "interrupted": "■ interrupted"}

_REPLAYED = "note: replayed from the saved run: its trees, tokens and seconds of rows; what a replay times is left out"


def begins_page(file: BinaryIO) -> bool:
    """Whether an open file is such a page."""
    return _MARK in file.read(_HEAD)


class ReportedRun:
    """A run as its page shows it: its state, the forwards of its models, and `notes` on what was read of it.

    `open_end` is the phase of a run that has not ended. Of `runs` it is set beside the last one over the same rows.
    """

    def __init__(self, runs: OtherRuns | None = None) -> None:
        self.state = RunState()
        self._runs = runs
        self._last: OtherRun | None = None
        self.notes: Sequence[str] = ()
        self.open_end = "cut off"
        self._forwards = Forwards()

    def add(self, event: Event) -> None:
        self.state.add(event)
        self._forwards.add(event)

    @property
    def phase(self) -> str:
        """How it stands, as the page's head has it."""
        phase = self.state.phase if self.state.ended else self.open_end
        failed = phase == "done" and self.state.failed
        kind, shown = ("failed", f"✔ done, {self.state.failed:,} failed") if failed else (phase, _PHASES.get(phase))
        return f'<span id="phase" role="status" class="{text(kind)}">{text(shown or f"◌ {phase}")}</span>'

    @property
    def main(self) -> str:
        """What stands below the head."""
        error = self.state.ended.error if self.state.ended else None
        told = f'<p class="bad" data-part="error">{text(error)}</p>' if error else ""
        lines = [*self.notes, *([_REPLAYED] if self.state.replayed else [])]
        notes = f'<div class="notes" data-part="notes">{paragraphs(lines)}</div>' if lines else ""
        if self._runs is not None and knows_itself(self.state):
            # It is looked for once: runs that end meanwhile are not what this one is compared with.
            self._last, self._runs = last_saved(self.state, self._runs), None
        return told + notes + "\n".join(run_parts(self.state, self._forwards, self._last))

    def page(self, file: str, *, live: bool = False) -> str:
        """One HTML file that loads nothing; one that is `live` asks the server that it came from for what is new."""
        program = self.state.begun.program if self.state.begun else "a run"
        heading = f"<h1>{text(one_line(program))}</h1>{self.phase}"
        return framed(one_line(f"{program} · {file}"), heading, self.main, live=live)


def last_saved(state: RunState, runs: OtherRuns) -> OtherRun | None:
    """The last run over the same rows; saved runs that cannot be read are as none."""
    names: Sequence[OtherName] = ()
    with contextlib.suppress(Exception):
        names = alike(state, runs.names())
    for name in names:
        with contextlib.suppress(Exception):
            saved = runs.read(name.name)
            if common_rows(state, saved):
                return saved
    return None


def page(recording: Iterable[Event], notes: Sequence[str], file: str, runs: OtherRuns | None = None) -> str:
    """The page of a recorded run."""
    reported = ReportedRun(runs)
    reported.notes = notes
    for event in recording:
        reported.add(event)
    return reported.page(file)

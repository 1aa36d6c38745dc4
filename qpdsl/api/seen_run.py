"""One run as a notebook shows it: by the events that were seen of it, else by the rows that it ended with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qpdsl import __version__
from qpdsl.api.candidate import Candidate
from qpdsl.executor.events.codec import decode, encode
from qpdsl.executor.events.events import (
    CandidateRecord,
    Event,
    Expanded,
    InputListed,
    InstanceDone,
    InstanceStarted,
    ModelsLoaded,
    RunStarted,
    Valued,
)
from qpdsl.grammar.words import COLUMNS
from qpdsl.planner.explain.plan import explain_json

if TYPE_CHECKING:
    from qpdsl.planner.plan.physical import PhysicalPlan
    from qpdsl.tui.state.run_state import RunState


@dataclass(frozen=True)
class SeenRun:
    """What was seen of one run: its plan, what was asked, and its events."""

    plan: PhysicalPlan
    asked: str
    events: tuple[Event, ...]

    @property
    def zero(self) -> float:
        """When it began, on the clock of its events."""
        return self.events[0].at if self.events else 0.0


def run_html(id: str, seen: SeenRun | None, rows: Sequence[Candidate], value: str, costs: str) -> str:
    """A run's value and costs, how it was searched, and where its tokens went, as far as that was seen."""
    from qpdsl.tui.report.cell import row_cell

    state = state_of(None, 1, {id: ""}) if seen is None else state_of(seen.plan, 1, {id: seen.asked})
    zero, events = (0.0, tuple(_of_rows(id, rows))) if seen is None else (seen.zero, seen.events)
    for event in events:
        add(state, event, zero)
    return row_cell(state, id, value, costs)


def state_of(plan: PhysicalPlan | None, rows: int, asked: Mapping[str, str]) -> RunState:
    """The state of a run that begins: of so many rows, 0 where nobody knows."""
    from qpdsl.tui.state.run_state import RunState

    state = RunState()
    if plan is not None:
        state.add(
            RunStarted(
                at=0.0,
                program=plan.name,
                plan=explain_json(plan),
                rows=rows,
                seed=0,
                device="cpu",
                concurrency=1,
                pid=0,
                wall=0.0,
                version=__version__,
            )
        )
    state.add(InputListed(at=0.0, ids=tuple(asked), asked=tuple(asked.values()), references=(None,) * len(asked)))
    return state


def add(state: RunState, event: Event, zero: float) -> None:
    """Adds an event as another process would read it, with its time since `zero`."""
    if state.loaded is None and isinstance(event, InstanceStarted):
        state.add(ModelsLoaded(at=max(event.at - zero, 0.0), models=(), seconds=0.0))
    state.add(decode(encode(event, zero)))


def _of_rows(id: str, candidates: Sequence[Candidate]) -> Iterator[Event]:
    """The rows that a run ended with, as if they had been seen."""
    rows = [(row, row.path or (at,)) for at, row in enumerate(candidates)]
    made = [
        CandidateRecord(
            path=path, step=row.text, finish="end", finished=True, logprob=row.logprob, tokens=len(row.tokens)
        )
        for row, path in rows
    ]
    yield Expanded(at=0.0, instance=id, operator="", candidates=tuple(made))
    for column in dict.fromkeys(name for row, _ in rows for name in row.columns if name not in COLUMNS):
        own = [(path, row.columns[column]) for row, path in rows if column in row.columns]
        values = tuple(value if isinstance(value, str | float | bool) else str(value) for _, value in own)
        paths, scores = tuple(path for path, _ in own), column == "score"
        yield Valued(at=0.0, instance=id, operator="", column=column, paths=paths, values=values, scores=scores)
    path = rows[0][1] if rows else ()
    yield InstanceDone(at=0.0, instance=id, prompt_tokens=0, sampled_tokens=0, seconds=0.0, error=None, path=path)

"""A program driven as its user would, and whatever can show it: live, from the middle on, and replayed.

What the screens say is compared with what the run's summary says. `faults_of` gives what differs, in words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from qpdsl.cli.runs.run_events import emit_row, emit_start
from qpdsl.executor.events.codec import decode, encode, header
from qpdsl.executor.events.events import Event, ModelsLoaded, OperatorDone, RunEnded
from qpdsl.executor.events.trace import LineReader, read_trace
from qpdsl.grammar.printable import one_line
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import Outcome
from qpdsl.runs.runner import outcomes_of
from qpdsl.session.session import Session
from qpdsl.session.settings import Settings
from qpdsl.tui.state.run_state import RunState
from tests.support.shipped_programs import Case, session
from tests.support.tui.held_source import HeldSource
from tests.support.tui.screen import dashboard, press, settle

SIZE = (160, 50)
# Operators that have ended before somebody comes late.
_EARLY = 2


def faults_of(case: Case, folder: Path) -> list[str]:
    """What differs, of a program that is run once."""
    one = session()
    one.load(case.plan)
    live, lines = RunState(), [header()]

    def see(event: Event) -> None:
        line = encode(event, one.events.zero)
        lines.append(line)
        live.add(decode(line))

    one.events.subscribe(see, details=True)
    job, row = Job(case.plan, None, 0), InputRow("row", dict(case.values))
    emit_start(one.events, Settings(), job, [row])
    one.events.emit(ModelsLoaded(models=tuple(case.plan.models.values()), seconds=0.1))
    outcome, late = asyncio.run(_run(one, job, row))
    emit_row(one.events, row, outcome)
    one.events.emit(RunEnded(status="done"))
    (folder / "trace.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    replayed = RunState()
    for event in read_trace(folder / "trace.jsonl", LineReader()):
        replayed.add(event)
    faults = [f"{how}: {fault}" for how, state in (("live", live), ("late", late)) for fault in _apart(state, replayed)]
    return [*faults, *asyncio.run(_on_screens(replayed, outcome))]


async def _run(one: Session, job: Job, row: InputRow) -> tuple[Outcome, RunState]:
    """The outcome, and the state of somebody who came when some operators had ended."""
    late, ended = RunState(), 0
    come = asyncio.Event()

    def count(event: Event) -> None:
        nonlocal ended
        ended += isinstance(event, OperatorDone)
        if ended == _EARLY:
            come.set()

    async def attach() -> None:
        await come.wait()
        one.events.subscribe(lambda event: late.add(decode(encode(event, one.events.zero))), details=True, history=True)

    task = asyncio.create_task(attach())
    (outcome,) = await outcomes_of(one, job, [row], 1)
    if not come.is_set():
        come.set()
    await task
    return outcome, late


def _apart(state: RunState, other: RunState) -> Iterator[str]:
    """What two states of one run do not agree on."""
    for name in ("done", "failed", "unanswered", "right", "running", "started"):
        if getattr(state, name) != getattr(other, name):
            yield f"{name} is {getattr(state, name)}, not {getattr(other, name)}"
    if state.operators != other.operators:
        yield "sums of operators differ"
    for name, tree in other.trees.items():
        own = state.trees.get(name)
        if own is None or own.fates != tree.fates:
            yield f"the tree has {None if own is None else own.fates}, not {tree.fates}"


async def _on_screens(state: RunState, outcome: Outcome) -> list[str]:
    source, faults = HeldSource(), list[str]()
    source.state = state

    def wants(shown: str, where: str, *texts: str | None) -> None:
        faults.extend(f"{where} does not say {text!r}" for text in texts if text and text not in shown)

    async with dashboard(source, SIZE) as pilot:
        plan = await settle(pilot)
        wants(plan, "the header", "all failed" if outcome.failure else "done")
        for operator in state.operators:
            line = None if state.plan is None else state.plan.line(operator)
            if line is None:
                faults.append(f"operator {operator} is no line of the plan")
        searched = await press(pilot, "3")
        (row,) = state.rows.values()
        tree = state.trees.get(row.id)
        if tree is not None and tree.answering is not None:
            wants(searched, "Search", "★ the answer")
        elif outcome.failure:
            wants(searched, "Search", one_line(outcome.failure)[:30])
        engine = await press(pilot, "4")
        for model in state.models.values():
            wants(engine, "Engine", model.name[:20])
        rows = await press(pilot, "2")
        answer = one_line(row.answer or "")
        wants(rows, "Rows", one_line(outcome.failure)[:30] if outcome.failure else answer[:12])
        details = await press(pilot, "d")
        wants(details, "the row", f"{outcome.tokens_in:,} in, {outcome.tokens_out:,} out")
    return faults

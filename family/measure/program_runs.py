"""Runs of programs over held-out tasks, as `qpdsl run` does them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count

from family.training.progress_bar import ProgressBar
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.values.value import Value
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import FinishedRow, Outcome
from qpdsl.runs.runner import outcomes_of
from qpdsl.session.programs import load_program
from qpdsl.session.session import Session
from qpdsl.session.surroundings import Surroundings

_IN_FLIGHT = 32


def shipped(name: str, models: Mapping[str, str], program: str | None = None) -> LogicalProgram:
    """A program that ships, over these models of the family: name in the program to id or folder."""
    return load_program(name, None, program, Surroundings(models=models, kinds={"prm": "rlhflow"}))


def pipeline(text: str, models: Mapping[str, str]) -> LogicalProgram:
    """The stages of a pipeline as a program, over these models."""
    return load_program(None, text, None, Surroundings(models=models))


def run_all(
    name: str, program: LogicalProgram, rows: Sequence[Mapping[str, Value]], answers: Sequence[object]
) -> list[Outcome]:
    """The outcome of the program for each row of arguments, with its rows. `answers` are the right ones, as texts."""
    physical = planned(program)
    defaults = {p.name: getattr(p.default, "value", None) for p in physical.params if p.default is not None}
    inputs = [
        InputRow(str(number), {**defaults, **row}, str(answer))
        for number, (row, answer) in enumerate(zip(rows, answers, strict=True))
    ]
    session = Session()
    session.load(physical)
    ended = count(1)
    with ProgressBar(name, 0, len(inputs)) as progress:

        def done(row: FinishedRow) -> None:
            if (number := next(ended)) % 25 == 0:
                progress.advance(number, {})

        return asyncio.run(outcomes_of(session, Job(physical, None, 0, with_rows=True), inputs, _IN_FLIGHT, done))

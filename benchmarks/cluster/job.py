"""The job that replicas run here: self-consistency on the shipped problems."""

from __future__ import annotations

from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.data.rows import read_rows
from qpdsl.runs.job import Job
from qpdsl.session.prepare import PlanUse, bind_program, prepare
from qpdsl.session.programs import input_path
from qpdsl.session.settings import Settings

PROGRAM = "self_consistency"
INPUT = "counting-500"


def job() -> Job:
    """The job, planned as `qpdsl run` plans it, without greedy decoding."""
    settings = Settings(target=PROGRAM)
    optimized = prepare(bind_program(settings), settings, PlanUse(alone=True)).optimized
    return Job(optimized.plan, None, 0, written=optimized.naive)


def rows(count: int) -> list[InputRow]:
    """The first so many problems."""
    return list(read_rows(input_path(INPUT), job().plan, {}).rows[:count])

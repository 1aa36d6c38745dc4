"""The job that replicas run here: self-consistency on the shipped problems."""

from __future__ import annotations

from qpdsl.dataset.job import Job
from qpdsl.inputs.input_row import InputRow
from qpdsl.inputs.rows import read_rows
from qpdsl.planning.planning import Planning, reads_of
from qpdsl.planning.target import Target
from qpdsl.sources.programs import input_path, load_program

PROGRAM = "self_consistency"
INPUT = "counting-500"


def job() -> Job:
    """The job, planned as `qpdsl run` plans it, without greedy decoding."""
    program = load_program(PROGRAM, None, None)
    optimized = Planning.of("optimized", ()).optimized(
        program, reads_of(program, rows=False, text=False), Target("cpu", None, None, None, ())
    )
    return Job(optimized.plan, None, 0, written=optimized.naive)


def rows(count: int) -> list[tuple[int, InputRow]]:
    """The first so many problems, numbered."""
    return list(enumerate(read_rows(input_path(INPUT), job().plan, {}).rows))[:count]

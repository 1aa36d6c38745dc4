"""Rows of a sweep that replicas run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from qpdsl.cli.runs.replica_rows import ReplicaOptions, ReplicaRows
from qpdsl.cluster.replica.messages import Task
from qpdsl.dataset.job import Job
from qpdsl.dataset.row_runner import FinishedRow
from qpdsl.evaluation.sweep import KeepCellRows
from qpdsl.executor.events.stream import EventStream
from qpdsl.inputs.input_row import InputRow
from qpdsl.sources.surroundings import Surroundings


class ReplicaCells:
    """A `CellRunner` over the replicas that the options name; `jobs` are by the place of the run.

    `settings` are keywords of `Session`, besides those that the options have.
    """

    def __init__(
        self,
        options: ReplicaOptions,
        jobs: Sequence[Job],
        surroundings: Surroundings,
        events: EventStream,
        **settings: Any,
    ) -> None:
        self.rows = ReplicaRows(options, jobs, surroundings, events, **settings)

    async def run(self, rows: Iterable[tuple[int, int, InputRow]], done: KeepCellRows) -> None:
        """See `CellRunner`."""
        under_way: dict[int, tuple[int, int]] = {}

        def tasks() -> Iterator[Task]:
            for task, (place, number, row) in enumerate(rows):
                under_way[task] = place, number
                yield Task(task, row, place)

        def ended(rows: Sequence[FinishedRow]) -> None:
            found = []
            for row in rows:
                place, number = under_way.pop(row.number)
                found.append((place, replace(row, number=number)))
            done(found)

        try:
            await self.rows.run_tasks(tasks(), ended)
        finally:
            self.rows.stop()

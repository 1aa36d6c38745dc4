"""What other programs and values would have given for the rows of a saved run, answered from its samples.

The programs run as ever, over an engine that has what was saved of each row. Equal seeds share their random numbers, so
the samples of a narrower search are among those of a wider one: what comes of a row is what a real run would give it,
to the last token, or the row is not answered, as a sample that it needs was never drawn. Rows that are answered are not
averaged alone: they are the easy ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qpdsl.executor.sample_memory.replay_engine import Asked, ReplayEngine
from qpdsl.executor.sample_memory.saved_samples import RowSamples
from qpdsl.runs.data.input_row import NumberedRow
from qpdsl.runs.evaluation import SweepEvaluation, evaluation
from qpdsl.runs.grid import Cell
from qpdsl.runs.job import Through
from qpdsl.runs.row_outcome import FinishedRow, Outcome
from qpdsl.runs.store.run_file import RunFile, RunFileError

if TYPE_CHECKING:
    from qpdsl.executor.requests.engine import Engine


@dataclass
class RowReplay:
    """Answers the rows of other jobs from what `run` saved, and counts what that has not.

    `contents` has a digest of each model's files by the models' ids. With `draws` samples that are missing are drawn.
    `asked` and `outcomes` are by the place of a job, and the number of a row.
    """

    run: RunFile
    contents: Mapping[str, str]
    draws: bool = False
    asked: dict[tuple[int, int], Asked] = field(default_factory=dict)
    outcomes: dict[tuple[int, int], Outcome] = field(default_factory=dict)

    def through(self, row: NumberedRow) -> Through:
        """What answers the requests of a row. Raises RunFileError where its samples are damaged."""
        saved = samples_of(self.run, row.number)
        asked = self.asked[row.run, row.number] = Asked()

        def before(engine: Engine) -> Engine:
            return ReplayEngine.before(engine, saved, self.contents, asked, draws=self.draws)

        return before

    def done(self, rows: Sequence[FinishedRow]) -> None:
        """Takes rows that have ended."""
        self.outcomes.update(((row.run, row.number), row.outcome) for row in rows)

    def answered(self, place: int) -> dict[int, Outcome]:
        """The outcomes of the rows of a job for which no sample was missing, by their numbers."""
        return {
            number: outcome
            for (run, number), outcome in sorted(self.outcomes.items(), key=lambda one: one[0])
            if run == place and not self.asked[run, number].missing
        }

    def unanswered(self, place: int) -> list[int]:
        """For each other row of a job, how many samples it needs at the least."""
        return [asked.missing for (run, _), asked in self.asked.items() if run == place and asked.missing]

    @property
    def read(self) -> Counter[str]:
        """How many texts each model was asked about, by its id."""
        return sum((asked.read for asked in self.asked.values()), Counter[str]())

    @property
    def drawn(self) -> Counter[str]:
        """How many samples each model drew, by its id."""
        return sum((asked.drawn for asked in self.asked.values()), Counter[str]())


def samples_of(run: RunFile, number: int) -> RowSamples:
    """What a run saved of a row. Raises RunFileError where there is nothing, or it is damaged."""
    data = run.samples(number)
    if data is None:
        raise RunFileError(f"run `{run.id}` has no samples of row {number + 1}, or they are damaged")
    try:
        return RowSamples.decoded(data)
    except ValueError as error:
        raise RunFileError(f"run `{run.id}` is damaged: the samples of row {number + 1}: {error}") from error


@dataclass(frozen=True, slots=True)
class OpenCell:
    """A cell that the saved samples do not answer: `answered` of its problems they do; `open` ones need `samples` more.

    They need so many at the least: what comes after them cannot be known.
    """

    cell: Cell
    answered: int
    open: int
    samples: int


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What came of it: `evaluation` has the cells that every row of which is answered, the saved run's own first.

    `read` and `drawn`: how many texts, and samples, each model was asked for, by its id.
    """

    run: str
    evaluation: SweepEvaluation
    open: tuple[OpenCell, ...]
    read: Mapping[str, int]
    drawn: Mapping[str, int]


def what_if(
    replay: RowReplay,
    cells: Sequence[Cell],
    input: str,
    *,
    by: str | None = None,
    groups: Mapping[int, str] | None = None,
) -> WhatIf:
    """The result once all rows have run. The first of the cells is the saved run's own; others are compared with it.

    `input` is what people call the rows, `groups` has the value of the field `by` of each.
    """
    record = replay.run.record
    needs = [replay.unanswered(place) for place in range(len(cells))]
    whole = {cell: [replay.answered(place)] for place, cell in enumerate(cells) if not needs[place]}
    left = [
        OpenCell(cell, len(replay.answered(place)), len(needs[place]), sum(needs[place]))
        for place, cell in enumerate(cells)
        if needs[place]
    ]
    ids: dict[Cell, Any] = {cells[0]: [replay.run.id]}
    base = cells[0].name if cells[0] in whole else None
    made = evaluation(record.program, input, [record.seed], whole, ids, baseline=base, by=by, groups=groups)
    return WhatIf(replay.run.id, made, tuple(left), dict(replay.read), dict(replay.drawn))

"""One call of `qpdsl whatif`: a saved run, what is changed of it, and its rows, which run over what was saved."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from qpdsl.cli.console import put, say, width_of
from qpdsl.cli.exits import Exit
from qpdsl.cli.file_guard import Contents, OutputFile
from qpdsl.cli.runs.run_files import guard_of
from qpdsl.cli.runs.run_options import RunOptions
from qpdsl.cli.runs.whatif_cells import WhatifCells
from qpdsl.cli.runs.whatif_options import WhatifOptions, changed, options_of
from qpdsl.cli.shared_options import graded_input, grader_for
from qpdsl.cli.signals import run_until_interrupted
from qpdsl.errors import UsageError
from qpdsl.executor.checkpoint.model_digest import location_digest
from qpdsl.executor.models.unloaded_model import ModelFacts
from qpdsl.grammar.model_id import is_remote
from qpdsl.model_location import own_places
from qpdsl.planner.explain.quantities import exact_plural
from qpdsl.runs.cells import PlannedCell, rows_of_cells
from qpdsl.runs.data.input_row import InputData, NumberedRow, groups_of
from qpdsl.runs.graders.judge_program import bind_grader
from qpdsl.runs.job import Job, refuse_tools
from qpdsl.runs.runner import LocalRunner
from qpdsl.runs.store.fingerprint import model_digests
from qpdsl.runs.store.recording import is_of
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.whatif import RowReplay, WhatIf, samples_of, what_if
from qpdsl.runs.whatif_text import begins_whatif, whatif_json_text, whatif_lines
from qpdsl.session.settings import Settings
from qpdsl.session.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.session.replaying_session import ReplayingSession

WHATIF = Contents("what a saved run answers", begins_whatif)
_USUAL_WIDTH = 80


class WhatifRun:
    """Answers from an open run. Of its `cells` the first is the run itself; `data` has the rows of each."""

    def __init__(self, options: WhatifOptions, run: RunFile) -> None:
        self.options = options
        self._run = run

    def carry_out(self) -> Exit:
        """Shows what the run answers. Raises UsageError, DataError, QpError and ModelError."""
        if not self._run.samples_size()[0]:
            raise UsageError(
                f"run `{self._run.id}` has no samples", "`qpdsl run … --save-samples` saves them with the run"
            )
        output = self._output_file(self.cells)
        if not self._settings.shares_samples:
            say("note: here a sample can depend on what is computed beside it, so that a real run may differ")
        made = self._made(self.replayed(draws=self.options.draw))
        self._show(made, output)
        failed = made.evaluation.failed or made.open
        return Exit.ROW_FAILED if failed else Exit.OK

    @cached_property
    def _started(self) -> RunOptions:
        return options_of(self._run.record, self._run.path)

    @cached_property
    def cells(self) -> list[PlannedCell]:
        """The run as it was, and what is asked of it, planned. Raises what `carry_out` does."""
        planned = WhatifCells(self.options, self._run, self._started)
        cells = [planned.own_cell(), *planned.asked_cells()]
        for cell in cells:
            refuse_tools(cell.plan)
        return cells

    @cached_property
    def data(self) -> list[InputData]:
        """The rows of each cell. Raises UsageError where the run has none of them."""
        settings, run = self._settings, self._run
        found = rows_of_cells(self.cells, lambda cell: graded_input(settings, cell.plan, cell.values))
        rows, numbers = found[0].rows, self._numbers_in(found[0])
        if not numbers:
            raise UsageError(
                f"no row of `{found[0].name}` is one of run `{run.id}` with its samples",
                "the input is another now, or the run has no finished row",
            )
        if len(numbers) < len(rows):
            known = f"{len(numbers):,} of {len(rows):,} rows are in run `{run.id}` with their samples"
            say(f"note: {known}; the others are left out")
        return found

    @cached_property
    def numbers(self) -> list[int]:
        """The numbers of the rows that the run has samples of."""
        return self._numbers_in(self.data[0])

    @cached_property
    def jobs(self) -> list[Job]:
        """What is run for a row of each cell."""
        seed, grader = self._run.record.seed, grader_for(self._settings, self.data[0], self._surroundings)
        return [Job.of(cell.prepared, seed, grader=grader) for cell in self.cells]

    def replayed(self, *, draws: bool) -> RowReplay:
        """All rows of all cells, answered as far as they can be."""
        contents = self._contents()
        session, replay = self._opened(contents, draws=draws), RowReplay(self._run, contents, draws)
        bind_grader(self.jobs[0].grader, session)
        rows = [
            NumberedRow(number, own.rows[number], place)
            for place, own in enumerate(self.data)
            for number in self.numbers
        ]
        runner = LocalRunner(session, self.jobs, self._settings.concurrency, through=replay.through)
        run_until_interrupted(runner.run(rows, replay.done))
        return replay

    @property
    def _surroundings(self) -> Surroundings:
        return self.cells[-1].prepared.bound.surroundings

    @cached_property
    def _settings(self) -> Settings:
        return changed(self._started, self.options)

    def _numbers_in(self, data: InputData) -> list[int]:
        run = self._run
        saved = {row.number: row for row in run.rows()}
        return [
            number
            for number, row in enumerate(data.rows)
            if number in saved and is_of(saved[number], row) and run.samples(number) is not None
        ]

    def _made(self, replay: RowReplay) -> WhatIf:
        groups = groups_of(self.data[0].rows, self.options.by)
        own = None if groups is None else {number: groups[number] for number in self.numbers}
        cells = [cell.cell for cell in self.cells]
        return what_if(replay, cells, self._settings.input or "", by=self.options.by, groups=own)

    def _contents(self) -> dict[str, str]:
        """A digest of the files of each model of this machine, by its id."""
        ids = {id for cell in self.cells for id in cell.plan.models.values() if not is_remote(id)}
        return {id: location_digest(*(place for place, _ in own_places(id))) for id in sorted(ids)}

    def _opened(self, contents: dict[str, str], *, draws: bool) -> ReplayingSession:
        """The session for all cells; what is known of the models without their weights was saved with the samples."""
        from qpdsl.session.replaying_session import ReplayingSession

        known = samples_of(self._run, self.numbers[0]).models
        facts = {id: ModelFacts.from_json(known[content]) for id, content in contents.items() if content in known}
        settings = replace(self._settings, share_samples=draws and self._settings.shares_samples)
        functions = self._surroundings.functions.values()
        session = ReplayingSession.of(
            settings, facts=facts, functions=functions, tell=lambda note: say(f"note: {note}")
        )
        for cell in self.cells:
            session.load(cell.plan)
            for name, id in cell.plan.models.items():
                if is_remote(id):
                    contents[id] = model_digests({name: id}, lambda: session)[name]
        return session

    def _output_file(self, cells: Sequence[PlannedCell]) -> OutputFile | None:
        if self.options.output is None:
            return None
        models = {name: model for cell in cells for name, model in cell.plan.models.items()}
        targets = self.options.targets or [one for one in (self._started.target,) if one is not None]
        guard = guard_of(self._settings, targets, models, [cell.plan for cell in cells], self._surroundings)
        guard.reads(self._run.path, "the run")
        place = Path(self.options.output).absolute()
        return guard.writes(place, "`--output`", WHATIF, overwrite=self.options.overwrite)

    def _show(self, made: WhatIf, output: OutputFile | None) -> None:
        for model, count in made.read.items():
            say(f"note: `{model}` was asked about {exact_plural(count, 'text')} that it had not read for the run")
        for model, count in made.drawn.items():
            say(f"note: `{model}` drew {exact_plural(count, 'sample')} that the run has not")
        width = _USUAL_WIDTH if output is not None else width_of(sys.stdout) or _USUAL_WIDTH
        form = self.options.form
        text = whatif_json_text(made)
        if form != "json":
            text = "\n".join(whatif_lines(made, width, markdown=form == "markdown"))
        if output is None:
            put(text)
        else:
            output.write([text])
            say(f"note: wrote `{self.options.output}`")

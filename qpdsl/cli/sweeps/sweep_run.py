"""A sweep from its cells to its table: what is left of it runs, and what is kept is shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qpdsl.arguments import ArgumentError
from qpdsl.cli.console import put, say, width_of
from qpdsl.cli.exits import Exit
from qpdsl.cli.runs.load_notes import LoadNotes
from qpdsl.cli.runs.run_options import load_plans
from qpdsl.cli.signals import last_words, run_until_interrupted
from qpdsl.cli.sweeps.replica_cells import ReplicaCells
from qpdsl.cli.sweeps.sweep_files import SweepFiles
from qpdsl.cli.sweeps.sweep_options import SweepOptions
from qpdsl.dataset.progress import progress_bar
from qpdsl.dataset.server_totals import call_facts, total_calls
from qpdsl.evaluation.evaluation import Evaluation, named_cell
from qpdsl.evaluation.evaluation_records import csv_text, json_text
from qpdsl.evaluation.kept_cells import KeptCells
from qpdsl.evaluation.planned_cell import PlannedCell
from qpdsl.evaluation.sweep import AT_ONCE, CellRunner, SessionCells, Sweep
from qpdsl.evaluation.sweep_runs import evaluation_of
from qpdsl.evaluation.sweep_table import markdown_lines, text_lines
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.requests.errors import BudgetReached, ServerGone
from qpdsl.garbage_collector import collections_paused
from qpdsl.measures.graders.judge_program import bind_grader
from qpdsl.plots.svg_scatter import svg
from qpdsl.run_store.run_folder import RunFolder
from qpdsl.settings import check_sharing
from qpdsl.sources.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.session import Session

_USUAL_WIDTH = 80


@dataclass
class SweepRun:
    """One call of `qpdsl eval`: its cells and files, and the session once it is open."""

    options: SweepOptions
    cells: Sequence[PlannedCell]
    surroundings: Surroundings
    files: SweepFiles
    command: Sequence[str]
    _events: EventStream = field(default_factory=EventStream)
    _session: Session | None = None
    _replicas: ReplicaCells | None = None
    _sweep: Sweep | None = field(default=None, init=False)

    def run(self) -> Exit:
        """Runs what is left, prints the table, and writes the files. Raises UsageError, DataError and ModelError."""
        if self.options.baseline is not None:
            named_cell([cell.cell for cell in self.cells], self.options.baseline)
        data = self.options.data(self.cells)
        self.options.groups_of(data[0].rows)
        runs = self.options.runs(self.cells, data, self.surroundings, self._open_session, self.command)
        folder = RunFolder()
        kept = KeptCells(folder) if self.options.fresh else KeptCells.of(folder)
        sweep = self._sweep = Sweep(runs, kept)
        try:
            with last_words(self._say_interrupted):
                left = sweep.look()
                self._run(sweep, left)
        except KeyboardInterrupt:
            self._say_interrupted()
            return Exit.INTERRUPTED
        except (BudgetReached, ServerGone) as error:
            return self._ended_early(error)
        options = self.options
        made = evaluation_of(
            sweep, options.input or data[0].name, range(options.seeds), baseline=options.baseline, by=options.by
        )
        self._show(made)
        self._say_failures(sweep)
        return Exit.ROW_FAILED if made.failed else Exit.OK

    def _open_session(self) -> Session:
        """The one session for all cells, which share weights, prefixes, scores and samples."""
        if self._session is not None:
            return self._session
        models = {name: model for cell in self.cells for name, model in cell.plan.models.items()}
        notes = LoadNotes(models, quiet=self.options.form == "json")
        notes.begin()
        with collections_paused():
            from qpdsl.session import Session

        session = self._session = Session(
            **self.options.settings_of_session,
            functions=self.surroundings.functions.values(),
            events=self._events,
            share_samples=self._can_share(),
        )
        load_plans(session, [cell.plan for cell in self.cells], notes)
        return session

    def _runner(self, sweep: Sweep) -> CellRunner:
        """What runs rows: replicas where the options name a cluster, else the session."""
        jobs = [run.job for run in sweep.runs]
        if self.options.cluster is None:
            session = self._open_session()
            for job in jobs:
                bind_grader(job.grader, session)
            return SessionCells(session, jobs, self.options.concurrency)
        if self._replicas is None:
            shares = {"share_samples": self._can_share()}
            self._replicas = ReplicaCells(self.options, jobs, self.surroundings, self._events, **shares)
        return self._replicas

    def _can_share(self) -> bool:
        options = self.options
        try:
            check_sharing(options.device, options.dtype, deterministic=options.deterministic)
        except ArgumentError:
            say("note: here samples can depend on what is computed beside them, so that cells share none")
            return False
        return True

    def _run(self, sweep: Sweep, left: Sequence[int]) -> None:
        start = time.monotonic()
        with progress_bar(self._events, sweep.total, sweep.done) as bar:

            def row_done() -> None:
                if bar is not None:
                    bar.row_done()

            for first in range(0, len(left), AT_ONCE):
                before = sweep.done
                with sweep.opened(left[first : first + AT_ONCE]) as runs:
                    for _ in range(sweep.done - before):
                        row_done()
                    if runs.left:
                        run_until_interrupted(runs.run(self._runner(sweep), row_done))
        if sweep.ended:
            self._tell(sweep, time.monotonic() - start)

    def _tell(self, sweep: Sweep, seconds: float) -> None:
        """Says what this call has done, which the table does not depend on."""
        kept = sweep.total - sweep.ended
        facts = [f"{sweep.ended:,} rows in {seconds:.1f} s"]
        if kept:
            facts.append(f"{kept:,} were there")
        if sweep.shared:
            share = sweep.shared / sweep.sampled
            facts.append(f"{sweep.shared:,} of {sweep.sampled:,} sampled tokens ({share:.0%}) were shared, not drawn")
        say(f"note: {'; '.join(facts)}")
        self._say_calls()
        if self._replicas is not None:
            self._replicas.rows.tell()

    def _say_calls(self) -> None:
        asked = self._replicas.rows if self._replicas is not None else self._session
        for name, text in call_facts(total_calls({} if asked is None else asked.calls)):
            say(f"{name}: {text}")

    def _show(self, made: Evaluation) -> None:
        text = _written(made, self.options.form, width_of(sys.stdout) or _USUAL_WIDTH)
        if self.files.plot is not None:
            self.files.plot.write([svg(made.scatter())])
        if self.files.output is None:
            put(text)
        else:
            self.files.output.write([_written(made, self.options.form, _USUAL_WIDTH)])

    def _say_failures(self, sweep: Sweep) -> None:
        """Says how many rows failed, and how to have them again."""
        outcomes = [outcome for rows in sweep.outcomes.values() for outcome in rows.values()]
        if failed := [outcome for outcome in outcomes if outcome.error is not None]:
            rows, them = ("1 row", "it") if len(failed) == 1 else (f"{len(failed):,} rows", "them")
            say(f"note: {rows} failed; `qpdsl runs show` says why, `--fresh` runs {them} again")
        if ungraded := [outcome for outcome in outcomes if outcome.error is None and outcome.grader_error is not None]:
            rows, they = ("1 row has", "it is") if len(ungraded) == 1 else (f"{len(ungraded):,} rows have", "they are")
            first = min(ungraded, key=lambda outcome: outcome.id)
            why = f"row `{first.id}`: {first.failure}"
            say(f"note: {rows} no grade, and {they} graded again by the same command; {why}")

    def _ended_early(self, error: BudgetReached | ServerGone) -> Exit:
        """Says why servers are not asked any more, and how to go on."""
        say(f"error: {error}: {self._finished()}")
        self._say_calls()
        more = ", with more to spend," if isinstance(error, BudgetReached) else ""
        say(f"help: the same command{more} goes on from there")
        return Exit.BUDGET if isinstance(error, BudgetReached) else Exit.SERVER

    def _say_interrupted(self) -> None:
        say(f"interrupted: {self._finished()}")
        say("help: finished rows are kept; the same command goes on from there")

    def _finished(self) -> str:
        if self._sweep is None:
            return "no row was run"
        return f"{self._sweep.done:,} of {self._sweep.total:,} rows are finished"


def _written(made: Evaluation, form: str, width: int) -> str:
    match form:
        case "json":
            return json_text(made)
        case "csv":
            return csv_text(made)
        case "markdown":
            return "\n".join(markdown_lines(made))
    return "\n".join(text_lines(made, width))

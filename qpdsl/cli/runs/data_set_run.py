"""A run over the rows of a data set: a sweep of one cell, with its results in order and its summary."""

from __future__ import annotations

import sys
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qpdsl.cli.console import is_terminal, put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.runs.analysis_run import Measurement
from qpdsl.cli.runs.rows_run import RowsRun
from qpdsl.cli.runs.run_events import emit_row, run_events
from qpdsl.cli.runs.run_files import RunFiles
from qpdsl.cli.runs.run_options import RunOptions, open_session, recording_samples
from qpdsl.cli.runs.run_tables import samples_words
from qpdsl.cli.shared_options import graded_input, grader_for
from qpdsl.cli.signals import run_until_interrupted
from qpdsl.cli.watched import WatchedProcess
from qpdsl.errors import LoadError, UsageError
from qpdsl.executor.events.events import RunSaved
from qpdsl.output import OrderedLines, holds_something
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp, everything
from qpdsl.planner.values.value import dumps, plain
from qpdsl.runs.data.input_row import InputData, groups_of, with_priorities
from qpdsl.runs.grid import Cell
from qpdsl.runs.job import Job
from qpdsl.runs.record_file import record_format
from qpdsl.runs.row_outcome import FinishedRow
from qpdsl.runs.runner import RowRunner
from qpdsl.runs.store.continuing import CellRun, check_unfinished, others_like, reuse, unfinished, writer_of
from qpdsl.runs.store.fingerprint import model_digests, run_fingerprint
from qpdsl.runs.store.recording import Recording
from qpdsl.runs.store.run_file import RunFile
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RunRecord
from qpdsl.runs.summary import Summary
from qpdsl.runs.sweep import Sweep
from qpdsl.runs.usage import count_waits
from qpdsl.session.budget_option import budget_option
from qpdsl.session.prepare import BoundProgram, Prepared

if TYPE_CHECKING:
    from qpdsl.session.session import Session


# So many rows take long where one of them does not end.
_MANY = 100


def answer_rows(
    process: WatchedProcess, options: RunOptions, prepared: Prepared, files: RunFiles, command: Sequence[str] = ()
) -> Exit:
    """Runs every row of the input, and saves what comes of each.

    The program's values are for parameters that a row does not set. `command` is the command line, for the record.
    """
    data = with_priorities(graded_input(options, prepared.plan, prepared.values), options.urgent)
    for note in data.notes:
        say(note)
    grader = grader_for(options, data, prepared.bound.surroundings)
    job = Job.of(prepared, options.seed or 0, with_rows=options.rows, grader=grader)
    if len(data.rows) >= _MANY and any(map(_is_endless, everything(job.plan.ops))):
        say("note: a `generate` has no `max_tokens`: its texts go on to where the model ends them, or the context does")
    groups = groups_of(data.rows, options.by)
    with run_events(process, options, job, data.rows, data.name):
        return _DataSetRun(process, options, job, prepared.bound, files, command, data, groups).carry_out()


def _is_endless(node: PhysicalOp) -> bool:
    op = node.op
    return isinstance(op, ops.Generate) and op.max_tokens is None and op.stop is None and op.constraint is None


class _DataSetRun(RowsRun[RunOptions]):
    """One run: what it has to do, and once it has begun what is saved of it."""

    def __init__(
        self,
        process: WatchedProcess,
        options: RunOptions,
        job: Job,
        bound: BoundProgram,
        files: RunFiles,
        command: Sequence[str],
        data: InputData,
        groups: Sequence[str] | None,
    ) -> None:
        super().__init__(process, options, bound.surroundings)
        self._job, self._values, self._files, self._command = job, bound.values, files, command
        self._data, self._groups = data, groups
        budget = bound.program.budget if bound.program.ways else None
        self._budget = "" if budget is None else budget_option(budget)
        self._output = files.output
        self._recording: Recording | None = None
        self._earlier: set[int] = set()
        self._measured: Measurement | None = None
        self._summary: Summary | None = None
        self._saved_samples = ""
        self._lines = OrderedLines(put) if files.output is None else None
        # Where the run cannot end in good order, another thread prints the finished rows.
        self._printing = threading.Lock()
        self._waits = count_waits(self.events)

    def run(self) -> None:
        """Runs the rows; with them the results are there, whole and in order."""
        self.sweep = Sweep([self._run()], self._open, saved=self.rows_saved, finish=self._finish)
        try:
            self.sweep.run(self.runner, self.drive)
        except (UsageError, LoadError) as error:
            # A full disk, say: what is finished is not lost.
            kind = LoadError if isinstance(error, LoadError) else UsageError
            raise kind(error.message, self.resumption() or error.help) from error

    def report(self) -> Exit:
        assert self._summary is not None
        options = self.options
        say("\n".join(self._summary.lines()))
        if self._saved_samples:
            say(f"samples: saved with the run, {self._saved_samples}")
        if options.json and self._output is not None:
            put(dumps(self._summary.to_json(timing=options.timing)))
        return Exit.ROW_FAILED if self._summary.failed else Exit.OK

    def open_session(self) -> Session:
        if self.session is None:
            self.session = open_session(self.options, self._job, self.surroundings, self.events)
        return self.session

    def saves(self) -> RunFile | None:
        return None if self._recording is None else self._recording.run

    def resumption(self, more: str = "") -> str | None:
        if self._recording is None or not self._recording.stays:
            return None
        done = f"{len(self._recording.outcomes)} of {len(self._data.rows)} rows are saved"
        asked = self.calls is not None and self.options.spending.completions is not None
        kept = ", and in the cache of completions what servers answered for others" if asked else ""
        how = " and ".join(filter(None, ("`--resume`", more, "" if self._files.trace is None else "another `--trace`")))
        return f"{done} in run `{self._recording.id}`{kept}; the same command with {how} goes on from there"

    def runner(self) -> RowRunner:
        runner = super().runner()
        if self.session is not None and self._recording is not None:
            rows, alone = len(self._recording.left()), self._job.greedy is None
            how = {"alone": alone, "wanted": self.options.analyze}
            self._measured = Measurement(self.options, self.session, self._job.plan, rows, **how)
        return runner

    def drive(self, rows: Coroutine[Any, Any, None], *, wanted: bool = True) -> None:
        super().drive(rows, wanted=self._lines is None or not is_terminal(sys.stdout))
        if self._measured is not None:
            self._measured.tell()
        if self.replicas is not None:
            self.replicas.tell()

    def row_saved(self, row: FinishedRow) -> None:
        emit_row(self.events, self._data.rows[row.number], row.outcome)
        if self._lines is not None:
            with self._printing:
                self._lines.put(row.number, self._line(row.number))

    def rows_ended(self) -> None:
        # However the run ends, the finished rows are printed.
        self._print_rest()
        if self._measured is not None and self._recording is not None:
            self._measured.remember(self._recording.run)

    def last_words(self) -> None:
        self._print_rest()
        super().last_words()

    def _open(self, run: CellRun) -> Recording:
        """The run with what is there of it: a new one, or one that is gone on with. Files are changed from here on."""
        options, folder = self.options, RunFolder()
        self._refuse_busy(folder)
        if options.resume:
            recording = self._resumed(folder, run)
        else:
            self._say_others(folder, run.record)
            # Models are loaded before anything is written, unless there is nothing left for them to do.
            if not options.reuse:
                self._load()
            recording = run.begin(folder)
        try:
            self._refuse_busy(folder, but=recording.id)
            if options.reuse:
                self._reuse(folder, recording)
            if recording.left():
                self._load()
            self._recording, self._earlier = recording, set(recording.outcomes)
            self.events.emit(RunSaved(run=recording.id))
            self.process.record(self._files.trace)
            for number in sorted(self._earlier):
                self.row_saved(FinishedRow(number, recording.outcomes[number]))
        except BaseException:
            recording.close()
            raise
        return recording

    def _run(self) -> CellRun:
        if self.options.resume:
            known = {**run_fingerprint(self._job, self._values, self.options, python=self.surroundings.python)}
            # What is recorded goes by the models.
            del known["options"]
            values = {name: plain(value) for name, value in self._values.items()}
            check_unfinished(RunFolder(), self._job.plan.name, known, values)
        self.process.prepare("reading the models' files")
        models = model_digests(self._job.models, self.open_session)
        if self.options.saves_samples:
            contents = {id: models[name] for name, id in self._job.models.items()}
            self._job = recording_samples(self._job, self.options, contents)
        return CellRun.of(
            Cell(self._job.plan.name, choice=self._budget),
            self._job,
            self._data,
            self._values,
            self.options,
            models=models,
            python=self.surroundings.python,
            command=self._command,
            output=None if self._output is None else self._output.path.absolute(),
            replaces=self.options.overwrite,
        )

    def _resumed(self, folder: RunFolder, run: CellRun) -> Recording:
        file, record = unfinished(folder, run.record, run.data), run.record
        replaces = record.replaces or (file.record.replaces and file.record.output == record.output)
        if self._output is not None:
            self._output = replace(self._output, overwrite=replaces)
            if holds_something(self._output.path) and not replaces:
                file.close()
                raise UsageError(
                    f"`{self._output.path}` was not there when run `{file.id}` began",
                    "move it away or give another name, then `--resume`",
                )
        recording = replace(run, record=replace(record, replaces=replaces)).resume(file)
        for note in recording.continued.notes(recording.id, len(run.data.rows)):
            say(note)
        return recording

    def _reuse(self, folder: RunFolder, recording: Recording) -> None:
        taken = run_until_interrupted(reuse(recording, folder))
        for id, rows in taken.items():
            say(f"reused {rows} row{'s' * (rows > 1)} of run `{id}`")
        if not taken:
            say("note: `--reuse` found no row: no saved run has the same program, values, seed and rows")

    def _say_others(self, folder: RunFolder, record: RunRecord) -> None:
        """Says which other runs compute, or have begun to compute, the same."""
        for info in others_like(folder, record):
            if info.writing:
                say(f"note: run `{info.id}` is at work on the same rows; `qpdsl top` shows it, Ctrl-C ends this one")
            elif info.status != "finished" and info.totals.done and not self.options.reuse:
                done = f"{info.totals.done} of {info.record.rows} rows"
                say(f"note: run `{info.id}` ended early with {done}; `--resume` goes on with it")

    def _refuse_busy(self, folder: RunFolder, but: str = "") -> None:
        """Raises UsageError where another run than `but` will write the same output."""
        if self._output is not None and (writer := writer_of(folder, self._output.path.absolute(), but=but)):
            raise UsageError(
                f"another run is writing to `{self._output.path}` now: `{writer}`",
                "wait for it or stop it, or give `--output` another name",
            )

    def _load(self) -> None:
        """Loads the models, where this process runs the rows."""
        if self.options.cluster is None:
            self.open_session()

    def _line(self, number: int) -> str:
        return dumps(self._row_record(number))

    def _row_record(self, number: int) -> dict[str, Any]:
        assert self._recording is not None
        return self._recording.outcomes[number].record(timing=self.options.timing)

    def _print_rest(self) -> None:
        if self._lines is not None:
            with self._printing:
                self._lines.rest()

    def _finish(self, place: int) -> dict[str, Any]:
        """Writes the results, all of which are there. Returns the summary of the run."""
        assert self._recording is not None
        outcomes = [self._recording.outcomes[number] for number in range(len(self._data.rows))]
        if self._output is not None:
            records = [self._row_record(number) for number in range(len(outcomes))]
            self._output.write_records(records, record_format(str(self.options.output)))
        self._saved_samples = samples_words(self._recording.run)
        sampled = sum(own.tokens_out for number, own in enumerate(outcomes) if number not in self._earlier)
        self._summary = Summary(outcomes, self.seconds, sampled, self._waits(), self.calls, self._groups)
        return self._summary.to_json(timing=True)

"""A run over the rows of a data set: a kept run, its results in order, its summary."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from qpdsl.cli.console import is_terminal, put, say, width_of
from qpdsl.cli.exits import Exit
from qpdsl.cli.file_guard import OutputFile
from qpdsl.cli.options.input_options import read_input
from qpdsl.cli.runs.analysis_run import remember, run_analysis
from qpdsl.cli.runs.route_record import tell_routers
from qpdsl.cli.runs.run_events import RunEvents, emit_row, run_events
from qpdsl.cli.runs.run_files import RunFiles
from qpdsl.cli.runs.run_options import RunOptions, open_session
from qpdsl.cli.signals import last_words, run_until_interrupted
from qpdsl.dataset.job import Job
from qpdsl.dataset.row_runner import FinishedRow, KeepRows, SessionRunner
from qpdsl.dataset.server_totals import call_facts, total_calls
from qpdsl.dataset.summary import Summary
from qpdsl.dataset.token_waits import count_waits
from qpdsl.errors import UsageError
from qpdsl.executor.events.events import RunEnded
from qpdsl.executor.requests.errors import BudgetReached, ServerGone
from qpdsl.executor.requests.latencies import Waits
from qpdsl.executor.requests.request import Calls
from qpdsl.inputs.input_row import InputData, InputRow
from qpdsl.output import OrderedLines, holds_something
from qpdsl.planner.values.json_values import dumps
from qpdsl.planner.values.value import Value
from qpdsl.run_store.description import run_record
from qpdsl.run_store.fingerprint import run_fingerprint
from qpdsl.run_store.measured import keep_measured
from qpdsl.run_store.model_digests import model_digests
from qpdsl.run_store.recording import Recording
from qpdsl.run_store.resumption import others_like, unfinished, writer_of
from qpdsl.run_store.reuse import reuse
from qpdsl.run_store.run_folder import RunFolder
from qpdsl.run_store.run_record import RunRecord, Status
from qpdsl.sources.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.cli.runs.replica_rows import ReplicaRows
    from qpdsl.session import Session


def answer_rows(
    options: RunOptions,
    job: Job,
    surroundings: Surroundings,
    values: Mapping[str, Value],
    files: RunFiles,
    command: Sequence[str] = (),
) -> Exit:
    """Runs every row of the input, and keeps what comes of each; `values` are for parameters that a row does not set.

    `command` is the command line, for the record of the run.
    """
    data = read_input(options, job.plan, values, options.used_fields)
    for note in data.notes:
        say(note)
    job = replace(job, grader=options.grader_for(data, surroundings, allow_code=options.allow_code))
    groups = options.groups_of(data.rows)
    with contextlib.ExitStack() as stack:
        events = stack.enter_context(run_events(options, job, data.rows, files.trace))
        return _Run(options, job, surroundings, values, files, command, data, events, groups).run(stack)


@dataclass
class _Run:
    """One run: what it has to do, and once it has begun what is kept of it."""

    options: RunOptions
    job: Job
    surroundings: Surroundings
    values: Mapping[str, Value]
    files: RunFiles
    command: Sequence[str]
    data: InputData
    record_events: RunEvents
    groups: Sequence[str] | None = None
    kept: Recording | None = None
    _session: Session | None = None
    _replicas: ReplicaRows | None = None
    _lines: OrderedLines | None = None
    # Where the run cannot end in good order, another thread prints the finished rows.
    _printing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.events = self.record_events.stream
        self.output = self.files.output
        self._waits: Mapping[str, Waits] = count_waits(self.events)

    def run(self, stack: contextlib.ExitStack) -> Exit:
        """Runs the rows; what is kept of the run is closed with `stack`."""
        try:
            with last_words(self._last_words):
                kept = self.kept = stack.enter_context(self._begun())
                self.record_events.record()
                earlier = set(kept.outcomes)
                for number in sorted(earlier):
                    emit_row(self.events, self.data.rows[number], kept.outcomes[number])
                seconds = self._run_rest(kept)
                if self.output is not None:
                    self.output.write(self._line(number) for number in range(len(self.data.rows)))
            summary = self._summary(kept, earlier, seconds)
            kept.end("finished", summary.to_json(timing=True))
        except KeyboardInterrupt:
            return self._interrupted()
        except (BudgetReached, ServerGone) as error:
            return self._ended_early(error)
        except UsageError as error:
            # A full disk, say: what is finished is not lost.
            self._end("failed")
            raise UsageError(error.message, self._where() or error.help) from error
        except BaseException:
            self._end("failed")
            raise
        return self._report(summary)

    def _begun(self) -> Recording:
        """The run with what is there of it: a new one, or one that is gone on with. Files are changed from here on."""
        folder = RunFolder()
        record = self._record()
        if self.output is not None and (writer := writer_of(folder, self.output.path.absolute())):
            raise self._busy(writer)
        if self.options.resume:
            kept = self._resumed(folder, record)
        else:
            self._tell_of_others(folder, record)
            # Models are loaded before anything is written, unless there is nothing left for them to do.
            if not self.options.reuse:
                self._load()
            kept = Recording.begin(folder, record, self.data, self.job.grader)
        try:
            if self.output is not None and (writer := writer_of(folder, self.output.path.absolute(), but=kept.id)):
                raise self._busy(writer)
            if self.options.reuse:
                taken = run_until_interrupted(reuse(kept, folder))
                for id, rows in taken.items():
                    say(f"reused {rows} row{'s' * (rows > 1)} of run `{id}`")
                if not taken:
                    say("note: `--reuse` found no row: no kept run has the same program, values, seed and rows")
            if kept.left():
                self._load()
        except BaseException:
            kept.close()
            raise
        return kept

    def _record(self) -> RunRecord:
        models = model_digests(self.job.models, self._open_session)
        fingerprint = run_fingerprint(
            self.job, self.values, self.options.computing, models=models, python=self.surroundings.python
        )
        return run_record(
            self.job,
            self.data,
            self.values,
            fingerprint,
            command=self.command,
            output=None if self.output is None else self.output.path.absolute(),
            replaces=self.options.overwrite,
        )

    def _resumed(self, folder: RunFolder, record: RunRecord) -> Recording:
        run = unfinished(folder, record, self.data)
        try:
            replaces = self.options.overwrite or (run.record.replaces and run.record.output == record.output)
            if self.output is not None:
                self.output = replace(self.output, overwrite=replaces)
                if holds_something(self.output.path) and not replaces:
                    raise UsageError(
                        f"`{self.output.path}` has come there since run `{run.id}` began",
                        "move it away or give another name, then `--resume`",
                    )
            record = replace(record, replaces=replaces)
            kept = asyncio.run(Recording.resume(run, record, self.data, self.job.grader))
        except BaseException:
            run.close()
            raise
        for note in kept.kept.notes(kept.id, len(self.data.rows)):
            say(note)
        return kept

    def _tell_of_others(self, folder: RunFolder, record: RunRecord) -> None:
        """Says which other runs compute, or have begun to compute, the same."""
        for info in others_like(folder, record):
            if info.writing:
                say(f"note: run `{info.id}` computes the same now")
            elif info.status != "finished" and not self.options.reuse:
                done = f"{info.totals.done} of {info.record.rows} rows"
                say(f"note: run `{info.id}` ended early with {done}; `--resume` goes on with it")

    def _busy(self, writer: str) -> UsageError:
        assert self.output is not None
        return UsageError(
            f"another run is writing to `{self.output.path}` now: `{writer}`",
            "wait for it or stop it, or give `--output` another name",
        )

    def _load(self) -> None:
        """Loads the models, where this process runs the rows."""
        if self.options.cluster is None:
            self._open_session()

    def _open_session(self) -> Session:
        if self._session is None:
            self._session = open_session(self.options, self.job, self.surroundings, self.events)
        return self._session

    def _run_rest(self, kept: Recording) -> float:
        """Runs the rows that are left. Returns the seconds that took."""
        from qpdsl.dataset.progress import progress_bar

        rest = kept.left()
        stream = self._lines = OrderedLines(put) if self.output is None else None
        if stream is not None:
            for number in sorted(kept.outcomes):
                stream.put(number, self._line(number))
        if not rest:
            return 0.0
        runner = self._runner(kept, len(rest))
        on_screen = stream is not None and is_terminal(sys.stdout)
        start = time.monotonic()
        with progress_bar(self.events, len(self.data.rows), len(kept.outcomes), wanted=not on_screen) as bar:

            def finished(rows: Sequence[FinishedRow]) -> None:
                kept.add_all(rows)
                for row in rows:
                    emit_row(self.events, self.data.rows[row.number], row.outcome)
                    if stream is not None:
                        with self._printing:
                            stream.put(row.number, self._line(row.number))
                    if bar is not None:
                        bar.row_done()

            try:
                run_until_interrupted(runner.run(rest, finished))
            finally:
                # However the run ends, the finished rows are printed.
                self._print_rest()
                runner.stop()
        seconds = time.monotonic() - start
        runner.tell()
        return seconds

    def _runner(self, kept: Recording, rows: int) -> _Here | ReplicaRows:
        """What runs the rows that are left: this process, or replicas."""
        if self.options.cluster is None:
            return _Here(self.options, self.job, self._open_session(), self.files.routes, rows, kept)
        from qpdsl.cli.runs.replica_rows import ReplicaRows

        shadow = self.options.shadow
        jobs = (self.job,)
        self._replicas = ReplicaRows(self.options, jobs, self.surroundings, self.events, kept.run, shadow=shadow)
        return self._replicas

    def _line(self, number: int) -> str:
        assert self.kept is not None
        return dumps(self.kept.outcomes[number].record(timing=self.options.timing))

    def _print_rest(self) -> None:
        if self._lines is not None:
            with self._printing:
                self._lines.rest()

    def _last_words(self) -> None:
        self._print_rest()
        self._say_interrupted()

    def _interrupted(self) -> Exit:
        self._say_interrupted()
        self._end("interrupted")
        self.events.emit(RunEnded(status="interrupted"))
        return Exit.INTERRUPTED

    def _ended_early(self, error: BudgetReached | ServerGone) -> Exit:
        """Says why servers are not asked any more, and how to go on."""
        say(f"error: {error}: {self._done} of {len(self.data.rows)} rows are finished")
        for name, text in call_facts(self._calls):
            say(f"{name}: {text}")
        if (where := self._where()) is not None:
            more = " and more to spend" if isinstance(error, BudgetReached) else ""
            say(f"help: {where.replace('`--resume`', f'`--resume`{more}', 1)}")
        self._end("failed")
        self.events.emit(RunEnded(status="failed", error=str(error)))
        return Exit.BUDGET if isinstance(error, BudgetReached) else Exit.SERVER

    def _say_interrupted(self) -> None:
        say(f"interrupted: {self._done} of {len(self.data.rows)} rows are finished")
        if (where := self._where()) is not None:
            say(f"help: {where}")

    @property
    def _done(self) -> int:
        return 0 if self.kept is None else len(self.kept.outcomes)

    @property
    def _calls(self) -> Calls | None:
        if self._replicas is not None:
            return total_calls(self._replicas.calls)
        return total_calls({} if self._session is None else self._session.calls)

    def _where(self) -> str | None:
        """Where the finished rows are, and how to go on from them; None where there are none."""
        if self.kept is None or not self._done:
            return None
        how = "`--resume`" if self.options.trace is None else "`--resume` and another `--trace`"
        return (
            f"{self._done} of {len(self.data.rows)} rows are kept in run `{self.kept.id}`; "
            f"the same command with {how} goes on from there"
        )

    def _end(self, status: Status) -> None:
        if self.kept is not None:
            # Where that cannot be written, the run is one that was stopped.
            with contextlib.suppress(UsageError):
                self.kept.end(status)

    def _summary(self, kept: Recording, earlier: set[int], seconds: float) -> Summary:
        sampled = sum(outcome.tokens_out for number, outcome in kept.outcomes.items() if number not in earlier)
        outcomes = [kept.outcomes[number] for number in sorted(kept.outcomes)]
        return Summary(outcomes, seconds, sampled, self._waits, self._calls, self.groups)

    def _report(self, summary: Summary) -> Exit:
        say("\n".join(summary.lines()))
        if self.options.json and self.output is not None:
            put(dumps(summary.to_json(timing=self.options.timing)))
        return Exit.ROW_FAILED if summary.failed else Exit.OK


class _Here:
    """Rows that a session of this process runs, and what is measured of it meanwhile."""

    def __init__(
        self, options: RunOptions, job: Job, session: Session, routes: OutputFile | None, rows: int, kept: Recording
    ) -> None:
        self._options = options
        self._kept = kept
        self._alone = job.greedy is None and routes is None
        self._routes = routes
        self._session = session
        self._rows = SessionRunner(session, job, options.concurrency)
        measured = options.analyze or options.statistics
        self._analysis = (
            run_analysis(session, job.plan, rows, options.concurrency, warm=options.statistics) if measured else None
        )

    async def run(self, rows: Sequence[tuple[int, InputRow]], done: KeepRows) -> None:
        """See `RowRunner`."""
        await self._rows.run(rows, done)

    def stop(self) -> None:
        """Remembers what was measured, however the run ended."""
        if self._analysis is None:
            return
        how = {"alone": self._alone, "wanted": self._options.analyze}
        if self._options.statistics:
            remember(self._analysis, **how)
        result = self._analysis.done()
        # What was measured is no part of the results. Where it cannot be written, the end of the run says so.
        try:
            keep_measured(self._kept.run, result.plan, result.figures, self._analysis.own_statistics(**how))
        except UsageError:
            pass
        except Exception as error:
            say(f"the run does not keep what was measured of it: {type(error).__name__}: {error}")

    def tell(self) -> None:
        """Says what was measured, once all rows are there."""
        if self._analysis is not None and self._options.analyze:
            say(self._analysis.done().text(width_of(sys.stderr)))
        tell_routers(self._session, self._routes, analyzed=self._options.analyze)

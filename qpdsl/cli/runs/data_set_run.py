"""A run over the rows of a data set: its journal, its results in order, its summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qpdsl import __version__
from qpdsl.cli.exits import Exit, say
from qpdsl.cli.runs.analysis_run import remember, run_analysis
from qpdsl.cli.runs.run_events import emit_row, event_stream
from qpdsl.cli.runs.run_options import RunOptions, open_session
from qpdsl.cli.signals import run_until_interrupted
from qpdsl.dataset.fingerprint import Fingerprint, digest, location_digest, operators
from qpdsl.dataset.job import Job, run_rows
from qpdsl.dataset.journal import Journal, journal_path
from qpdsl.dataset.json_values import dumps
from qpdsl.dataset.row_outcome import Outcome
from qpdsl.dataset.rows import InputData, read_rows
from qpdsl.dataset.summary import Summary
from qpdsl.errors import UsageError
from qpdsl.executor.events.events import RunEnded
from qpdsl.output import OrderedLines, check_writable, write_whole
from qpdsl.planner.plan.evaluate import Value
from qpdsl.sources.programs import input_path
from qpdsl.sources.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.executor.events.stream import EventStream
    from qpdsl.session import Session


def answer_rows(options: RunOptions, job: Job, surroundings: Surroundings, values: Mapping[str, Value]) -> Exit:
    """Runs every row of the input; `values` are for the parameters that a row does not set."""
    assert options.input is not None
    path = input_path(options.input)
    output = None if options.output is None else check_writable(Path(options.output), path)
    if output is not None:
        _check_unfinished(options, output)
    data = read_rows(path, job.plan, values)
    with event_stream(options, job, data.rows) as events:
        return _Run(options, job, surroundings, data, output, events).run(digest(dict(values)))


class _Run:
    """One run: what it has to do, and the outcomes so far by row number, in the order in which they came."""

    def __init__(
        self,
        options: RunOptions,
        job: Job,
        surroundings: Surroundings,
        data: InputData,
        output: Path | None,
        events: EventStream,
    ) -> None:
        self.options = options
        self.job = job
        self.surroundings = surroundings
        self.data = data
        self.output = output
        self.events = events
        self.outcomes: dict[int, Outcome] = {}
        self._journal: Journal | None = None
        self._session: Session | None = None

    def run(self, arguments: str) -> Exit:
        if self.output is not None:
            self._journal = self._open_journal(self.output, self._fingerprint(arguments))
            self.outcomes = self._journal.done
        earlier = set(self.outcomes)
        for number in sorted(earlier):
            emit_row(self.events, self.data.rows[number], self.outcomes[number])
        try:
            seconds = self._run_rest()
            lines = (self._line(number) for number in range(len(self.data.rows)))
            if self._journal is not None and self.output is not None:
                write_whole(self.output, lines)
                self._journal.remove()
        except KeyboardInterrupt:
            return self._interrupted()
        finally:
            if self._journal is not None:
                # A journal without a row has nothing to resume: say, no model could be loaded.
                (self._journal.close if self._journal.done else self._journal.remove)()
        sampled = sum(outcome.tokens_out for number, outcome in self.outcomes.items() if number not in earlier)
        return self._report(Summary([self.outcomes[number] for number in sorted(self.outcomes)], seconds, sampled))

    def _fingerprint(self, arguments: str) -> Fingerprint:
        options, plan = self.options, self.job.plan
        recorded = {"rows": options.rows, "timing": options.timing, "greedy": options.greedy}
        return {
            "version": __version__,
            "program": digest([plan.name, str(plan.within), operators((self.job.written or plan).ops)]),
            **({"python": self.surroundings.python} if self.surroundings.python else {}),
            "arguments": arguments,
            "seed": str(options.seed),
            "input": self.data.digest,
            "plan": self.job.planned,
            "device": options.device,
            "dtype": options.dtype or "default",
            **({"kv type": kv_type} if (kv_type := options.kv_type or plan.kv_type) else {}),
            **{mode: "on" for mode in ("deterministic", "compile") if getattr(options, mode)},
            "options": ", ".join(name for name, on in recorded.items() if on) or "answers",
            **{f"model `{name}`": content for name, content in self._model_digests().items()},
        }

    def _model_digests(self) -> dict[str, str]:
        from qpdsl.model_location import locate

        locations = {name: locate(model) for name, model in self.job.models.items()}
        if not all(isinstance(location, Path) and location.is_dir() for location in locations.values()):
            # The version of a hub model is known only once it is in the cache. A missing folder is refused here.
            self._session = open_session(self.options, self.job, self.surroundings, self.events)
        return {name: location_digest(location) for name, location in locations.items()}

    def _open_journal(self, output: Path, fingerprint: Fingerprint) -> Journal:
        path = journal_path(output)
        if self.options.resume and path.exists():
            return Journal.resume(path, fingerprint)
        return Journal.begin(path, fingerprint)

    def _run_rest(self) -> float:
        """Runs the rows that are left. Returns the seconds that took, without loading the models."""
        rest = [(number, row) for number, row in enumerate(self.data.rows) if number not in self.outcomes]
        if not rest:
            return 0.0
        from qpdsl.dataset.progress import progress_bar

        session = self._session or open_session(self.options, self.job, self.surroundings, self.events)
        stream = OrderedLines(sys.stdout) if self.output is None else None
        on_screen = stream is not None and sys.stdout.isatty()
        measured = self.options.analyze or self.options.statistics
        analysis = run_analysis(session, self.job.plan, len(rest), self.options.concurrency) if measured else None
        start = time.monotonic()
        done = len(self.outcomes)
        with progress_bar(session.events, len(self.data.rows), done, wanted=not on_screen) as bar:

            def finished(number: int, outcome: Outcome) -> None:
                if self._journal is not None:
                    self._journal.add(number, outcome)
                self.outcomes[number] = outcome
                emit_row(self.events, self.data.rows[number], outcome)
                if stream is not None:
                    stream.put(number, self._line(number))
                if bar is not None:
                    bar.row_done()

            try:
                run_until_interrupted(run_rows(session, self.job, rest, self.options.concurrency, finished))
            finally:
                # However the run ends, the finished rows are printed.
                if stream is not None:
                    stream.rest()
                if analysis is not None and self.options.statistics:
                    remember(analysis, alone=self.job.greedy is None, wanted=self.options.analyze)
        if analysis is not None and self.options.analyze:
            say(str(analysis.done()))
        return time.monotonic() - start

    def _line(self, number: int) -> str:
        return dumps(self.outcomes[number].record(timing=self.options.timing))

    def _interrupted(self) -> Exit:
        self.events.emit(RunEnded(status="interrupted"))
        done, total = len(self.outcomes), len(self.data.rows)
        say(f"interrupted: {done} of {total} rows are finished")
        if self._journal is not None and done:
            say(f"help: they are kept in `{self._journal.path}`; the same command with `--resume` goes on from there")
        return Exit.INTERRUPTED

    def _report(self, summary: Summary) -> Exit:
        say("\n".join(summary.lines()))
        if self.options.json and self.output is not None:
            click.echo(dumps(summary.to_json(timing=self.options.timing)))
        return Exit.ROW_FAILED if summary.failed else Exit.OK


def _check_unfinished(options: RunOptions, output: Path) -> None:
    journal = journal_path(output)
    if journal.exists() and not (options.resume or options.overwrite):
        raise UsageError(
            f"an unfinished run is in `{journal}`",
            help="`--resume` goes on with it, `--overwrite` drops it and starts over",
        )
    if options.resume and output.exists() and not journal.exists():
        raise UsageError(
            f"there is no unfinished run beside `{output}`, and a finished file does not say what run made it",
            help="leave out `--resume` to run it again",
        )

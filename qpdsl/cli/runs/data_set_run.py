"""A run over the rows of a data set: its journal, its results in order, its summary."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qpdsl.cli.console import is_terminal, put, say, width_of
from qpdsl.cli.exits import Exit
from qpdsl.cli.runs.analysis_run import remember, run_analysis
from qpdsl.cli.runs.route_record import tell_routers
from qpdsl.cli.runs.run_events import RunEvents, emit_row, run_events
from qpdsl.cli.runs.run_files import RunFiles
from qpdsl.cli.runs.run_options import RunOptions, open_session
from qpdsl.cli.signals import last_words, run_until_interrupted
from qpdsl.dataset.fingerprint import Fingerprint, build, digest, operators
from qpdsl.dataset.job import Job, run_rows
from qpdsl.dataset.journal import Journal, journal_path
from qpdsl.dataset.json_values import dumps
from qpdsl.dataset.row_outcome import Outcome
from qpdsl.dataset.rows import InputData, read_rows
from qpdsl.dataset.server_totals import call_facts, total_calls
from qpdsl.dataset.summary import Summary
from qpdsl.dataset.token_waits import count_waits
from qpdsl.errors import UsageError
from qpdsl.executor.events.events import RunEnded
from qpdsl.executor.requests.errors import BudgetReached, ServerGone
from qpdsl.executor.runtime.instance.noise import NOISE_VERSION
from qpdsl.grammar.model_id import is_remote
from qpdsl.model_digest import location_digest, tokens_digest
from qpdsl.output import OrderedLines, holds_something
from qpdsl.planner.values.value import Value
from qpdsl.planning.routed import routes_exits
from qpdsl.sources.surroundings import Surroundings

if TYPE_CHECKING:
    from qpdsl.session import Session

_MOST_LISTED = 10


def answer_rows(
    options: RunOptions, job: Job, surroundings: Surroundings, values: Mapping[str, Value], files: RunFiles
) -> Exit:
    """Runs every row of the input; `values` are for the parameters that a row does not set."""
    with contextlib.ExitStack() as stack:
        journal = None
        if files.output is not None:
            journal = stack.enter_context(contextlib.closing(Journal(journal_path(files.output.path))))
            _check_unfinished(options, journal, files.output.path)
        data = read_rows(files.input, job.plan, values)
        for note in data.notes:
            say(note)
        events = stack.enter_context(run_events(options, job, data.rows, files.trace))
        return _Run(options, job, surroundings, data, files, journal, events).run(digest(dict(values)))


class _Run:
    """One run: what it has to do, and the outcomes so far by row number, in the order in which they came."""

    def __init__(
        self,
        options: RunOptions,
        job: Job,
        surroundings: Surroundings,
        data: InputData,
        files: RunFiles,
        journal: Journal | None,
        events: RunEvents,
    ) -> None:
        self.options = options
        self.job = job
        self.surroundings = surroundings
        self.data = data
        self.output = files.output
        self._routes = files.routes
        self.events = events.stream
        self._waits = count_waits(events.stream)
        self.outcomes: dict[int, Outcome] = {} if journal is None else journal.done
        self._record = events.record
        self._journal = journal
        self._lines: OrderedLines | None = None
        # Where the run cannot end in good order, another thread prints the finished rows.
        self._printing = threading.Lock()
        self._session: Session | None = None

    def run(self, arguments: str) -> Exit:
        try:
            with last_words(self._last_words):
                session = self._begin(arguments)
                earlier = set(self.outcomes)
                seconds = 0.0 if session is None else self._run_rest(session)
            if self._journal is not None and self.output is not None:
                self.output.write(self._line(number) for number in range(len(self.data.rows)))
                self._journal.remove()
        except KeyboardInterrupt:
            return self._interrupted()
        except (BudgetReached, ServerGone) as error:
            return self._ended_early(error)
        except UsageError as error:
            # A full disk, say: what is finished is not lost.
            raise UsageError(error.message, self._kept() or error.help) from error
        sampled = sum(outcome.tokens_out for number, outcome in self.outcomes.items() if number not in earlier)
        outcomes = [self.outcomes[number] for number in sorted(self.outcomes)]
        calls = {} if self._session is None else self._session.calls
        return self._report(Summary(outcomes, seconds, sampled, self._waits, total_calls(calls)))

    def _begin(self, arguments: str) -> Session | None:
        """The session for the rows that are left, None where none is. Files are changed once its models are loaded."""
        journal = self._journal
        fingerprint = None if journal is None else self._fingerprint(arguments)
        if journal is not None and fingerprint is not None and self.options.resume:
            journal.read(fingerprint, [row.id for row in self.data.rows])
            self._check_resumed(journal)
        if len(self.outcomes) < len(self.data.rows):
            self._session = self._session or self._open_session()
        if journal is not None and fingerprint is not None:
            journal.begin(fingerprint, replaces=self.options.overwrite)
        self._record()
        for number in sorted(self.outcomes):
            emit_row(self.events, self.data.rows[number], self.outcomes[number])
        return self._session if len(self.outcomes) < len(self.data.rows) else None

    def _check_resumed(self, journal: Journal) -> None:
        assert self.output is not None
        if journal.damaged:
            say(f"warning: {_damage(journal)}")
        if holds_something(self.output.path) and not journal.replaces:
            raise UsageError(
                f"`{self.output.path}` has come there since the unfinished run began", "move it away, then `--resume`"
            )
        self.output = replace(self.output, overwrite=journal.replaces)

    def _open_session(self) -> Session:
        return open_session(self.options, self.job, self.surroundings, self.events)

    def _fingerprint(self, arguments: str) -> Fingerprint:
        options, plan = self.options, self.job.plan
        recorded = {"rows": options.rows, "timing": options.timing, "greedy": options.greedy}
        return {
            "version": build(),
            "program": digest([plan.name, str(plan.within), operators((self.job.written or plan).ops)]),
            **({"python": self.surroundings.python} if self.surroundings.python else {}),
            "arguments": arguments,
            "seed": str(options.seed),
            "noise": str(NOISE_VERSION),
            "input": self.data.digest,
            "plan": self.job.planned,
            "device": options.device,
            "dtype": options.dtype or "default",
            **({"kv type": kv_type} if (kv_type := options.kv_type or plan.kv_type) else {}),
            **({"router": str(options.router)} if routes_exits(plan) else {}),
            **{mode: "on" for mode in ("deterministic", "compile") if getattr(options, mode)},
            "options": ", ".join(name for name, on in recorded.items() if on) or "answers",
            **{f"model `{name}`": content for name, content in self._model_digests().items()},
        }

    def _model_digests(self) -> dict[str, str]:
        from qpdsl.model_location import own_places

        places = {name: [place for place, _ in own_places(model)] for name, model in self.job.models.items()}
        remote = {name: model for name, model in self.job.models.items() if is_remote(model)}
        if remote or not all(isinstance(place, Path) and place.is_dir() for own in places.values() for place in own):
            # The version of a hub model is known only once it is in the cache, and what a server is once it is asked. A
            # missing folder is refused here.
            self._session = self._open_session()
        digests = {}
        for name, own in places.items():
            if name in remote:
                assert self._session is not None
                tokens = " ".join(tokens_digest(place) for place in own)
                digests[name] = " ".join(filter(None, (self._session.server_digest(remote[name]), tokens)))
            else:
                digests[name] = location_digest(*own)
        return digests

    def _run_rest(self, session: Session) -> float:
        """Runs the rows that are left. Returns the seconds that took."""
        rest = [(number, row) for number, row in enumerate(self.data.rows) if number not in self.outcomes]
        from qpdsl.dataset.progress import progress_bar

        stream = self._lines = OrderedLines(put) if self.output is None else None
        on_screen = stream is not None and is_terminal(sys.stdout)
        measured = self.options.analyze or self.options.statistics
        sizes, warm = (len(rest), self.options.concurrency), self.options.statistics
        analysis = run_analysis(session, self.job.plan, *sizes, warm=warm) if measured else None
        start = time.monotonic()
        done = len(self.outcomes)
        with progress_bar(session.events, len(self.data.rows), done, wanted=not on_screen) as bar:

            def finished(number: int, outcome: Outcome) -> None:
                if self._journal is not None:
                    self._journal.add(number, outcome)
                self.outcomes[number] = outcome
                emit_row(self.events, self.data.rows[number], outcome)
                if stream is not None:
                    with self._printing:
                        stream.put(number, self._line(number))
                if bar is not None:
                    bar.row_done()

            try:
                run_until_interrupted(run_rows(session, self.job, rest, self.options.concurrency, finished))
            finally:
                # However the run ends, the finished rows are printed.
                self._print_rest()
                if analysis is not None and self.options.statistics:
                    alone = self.job.greedy is None and self._routes is None
                    remember(analysis, alone=alone, wanted=self.options.analyze)
        seconds = time.monotonic() - start
        if analysis is not None and self.options.analyze:
            say(analysis.done().text(width_of(sys.stderr)))
        tell_routers(session, self._routes, analyzed=self.options.analyze)
        return seconds

    def _line(self, number: int) -> str:
        return dumps(self.outcomes[number].record(timing=self.options.timing))

    def _print_rest(self) -> None:
        if self._lines is not None:
            with self._printing:
                self._lines.rest()

    def _last_words(self) -> None:
        self._print_rest()
        self._say_interrupted()

    def _interrupted(self) -> Exit:
        self._say_interrupted()
        self.events.emit(RunEnded(status="interrupted"))
        return Exit.INTERRUPTED

    def _ended_early(self, error: BudgetReached | ServerGone) -> Exit:
        """Says why servers are not asked any more, and how to go on."""
        done, total = len(self.outcomes), len(self.data.rows)
        say(f"error: {error}: {done} of {total} rows are finished")
        self._say_calls()
        if (kept := self._kept()) is not None:
            more = " and more to spend" if isinstance(error, BudgetReached) else ""
            say(f"help: {kept.replace('`--resume`', f'`--resume`{more}', 1)}")
        self.events.emit(RunEnded(status="failed", error=str(error)))
        return Exit.BUDGET if isinstance(error, BudgetReached) else Exit.SERVER

    def _say_calls(self) -> None:
        calls = {} if self._session is None else self._session.calls
        for name, text in call_facts(total_calls(calls)):
            say(f"{name}: {text}")

    def _say_interrupted(self) -> None:
        done, total = len(self.outcomes), len(self.data.rows)
        say(f"interrupted: {done} of {total} rows are finished")
        kept = self._kept()
        if kept is not None:
            say(f"help: {kept}")

    def _kept(self) -> str | None:
        """Where the finished rows are, and how to go on from them; None where there are none."""
        if self._journal is None or not self.outcomes:
            return None
        done, total = len(self.outcomes), len(self.data.rows)
        how = "`--resume`" if self.options.trace is None else "`--resume` and another `--trace`"
        return (
            f"{done} of {total} rows are kept in `{self._journal.path}`; the same command with {how} goes on from there"
        )

    def _report(self, summary: Summary) -> Exit:
        say("\n".join(summary.lines()))
        if self.options.json and self.output is not None:
            put(dumps(summary.to_json(timing=self.options.timing)))
        return Exit.ROW_FAILED if summary.failed else Exit.OK


def _check_unfinished(options: RunOptions, journal: Journal, output: Path) -> None:
    if journal.unfinished and not (options.resume or options.overwrite):
        raise UsageError(
            f"an unfinished run is in `{journal.path}`",
            help="`--resume` goes on with it, `--overwrite` drops it and starts over",
        )
    if options.resume and holds_something(output) and not journal.unfinished:
        raise UsageError(
            f"there is no unfinished run beside `{output}`, and a finished file does not say what run made it",
            help="leave out `--resume` to run it again",
        )


def _damage(journal: Journal) -> str:
    """The lines of the journal that are not believed, in words."""
    first, count = journal.damaged[:_MOST_LISTED], len(journal.damaged)
    lines = ", ".join(map(str, first)) + (f" and {count - len(first)} more" if count > len(first) else "")
    what = (
        f"lines {lines} of `{journal.path}` are damaged: what they held"
        if count > 1
        else (f"line {lines} of `{journal.path}` is damaged: what it held")
    )
    return f"{what} is not used, and rows that are missing run again"

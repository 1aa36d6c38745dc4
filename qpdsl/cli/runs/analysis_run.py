"""`--analyze`: a run that measures what a plan takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from qpdsl.cli.console import put, say, width_of
from qpdsl.cli.exits import Exit
from qpdsl.cli.shared_options import read_input
from qpdsl.errors import UsageError, UserError
from qpdsl.session.settings import Settings

if TYPE_CHECKING:
    from qpdsl.planner.explain.analyze import Analysis
    from qpdsl.planner.plan.physical import PhysicalPlan
    from qpdsl.runs.data.input_row import InputRow
    from qpdsl.runs.store.run_file import RunFile
    from qpdsl.session.analysis import RunAnalysis
    from qpdsl.session.prepare import Prepared
    from qpdsl.session.session import Session


class Measurement:
    """What is measured of a session from now on for `--analyze` and the statistics; nothing without both.

    `rows` is how many rows of `plan` run. `alone` says that the session runs nothing else meanwhile, `wanted` that the
    user asked for an analysis. With statistics, routers begin with what earlier runs learned.
    """

    def __init__(
        self, settings: Settings, session: Session, plan: PhysicalPlan, rows: int, *, alone: bool, wanted: bool
    ) -> None:
        self._settings = settings
        self._session = session
        self._how = {"alone": alone, "wanted": wanted}
        self._analysis: RunAnalysis | None = None
        if not wanted and not settings.statistics:
            return
        from qpdsl.session.analysis import RunAnalysis

        self._analysis = RunAnalysis(session, plan, rows, settings.concurrency)
        if settings.statistics:
            self._analysis.warm_start(lambda line: say(f"note: {line}"))

    @property
    def result(self) -> Analysis:
        """The figures so far, where something is measured."""
        assert self._analysis is not None
        return self._analysis.done()

    def remember(self, saved: RunFile | None = None) -> None:
        """Adds what was measured to the statistics, and to the file of the run; however the run ended."""
        analysis = self._analysis
        if analysis is None:
            return
        if self._settings.statistics:
            with _no_failure("the statistics do not have this run"):
                analysis.remember(**self._how)
        if saved is None:
            return
        from qpdsl.runs.store.measured import keep_measured

        # What was measured is no part of the results. Where it cannot be written, the end of the run says so.
        result = self.result
        with _no_failure("warning: what was measured could not be saved with the run"):
            keep_measured(saved, result.plan, result.figures, analysis.own_statistics(**self._how))

    def tell(self) -> None:
        """Shows what was measured, or else what the session's routers did."""
        if self._how["wanted"]:
            say(self.result.text(width_of(sys.stderr)))
            return
        from qpdsl.planner.explain.quantities import exit_router_words, router_words
        from qpdsl.session.analysis import exit_router_figures, router_figures

        for model, figures in router_figures(self._session).items():
            say(f"{model}: {router_words(figures)}")
        for model, exits in exit_router_figures(self._session).items():
            for router in exits:
                say(f"{model}: {exit_router_words(router)}")


@contextmanager
def _no_failure(words: str) -> Iterator[None]:
    """Says what could not be kept. That is no failure of the run, and where nothing can be kept the user knows it."""
    try:
        yield
    except UserError:
        pass
    except Exception as error:
        say(f"{words}: {type(error).__name__}: {error}")


def run_for_analysis(options: Settings, prepared: Prepared, form: str) -> Exit:
    """Runs a prepared program, and prints its analysis, as text or JSON."""
    import json

    from qpdsl.cli.runs.run_options import loaded_session
    from qpdsl.cli.signals import interruptible, run_until_interrupted
    from qpdsl.runs.job import Job
    from qpdsl.runs.runner import outcomes_of

    plan = prepared.plan
    rows = _rows(options, prepared)
    with interruptible():
        surroundings = prepared.bound.surroundings
        session = loaded_session(options.for_plan(plan), [plan], surroundings, quiet=form == "json")
        measured = Measurement(options, session, plan, len(rows), alone=True, wanted=True)
        try:
            job = Job.of(prepared, options.seed or 0)
            outcomes = run_until_interrupted(outcomes_of(session, job, rows, options.concurrency))
        finally:
            measured.remember()
    result = measured.result
    put(
        json.dumps(result.to_json(), ensure_ascii=False, indent=2)
        if form == "json"
        else result.text(width_of(sys.stdout))
    )
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    if failed:
        say(f"error: {len(failed)} of {len(outcomes)} rows failed (row `{failed[0].id}`: {failed[0].failure})")
        return Exit.ROW_FAILED
    return Exit.OK


def _rows(options: Settings, prepared: Prepared) -> list[InputRow]:
    """The rows to run: of the input, or a single one of the values. Raises UsageError and DataError."""
    if options.input is None:
        return [row_of_values(prepared)]
    data = read_input(options, prepared.plan, prepared.values)
    for note in data.notes:
        say(note)
    return list(data.rows)


def row_of_values(prepared: Prepared) -> InputRow:
    """The only row of a program that was given its values by options. Raises UsageError where one is missing."""
    from qpdsl.arguments import ArgumentError, bind
    from qpdsl.runs.data.input_row import InputRow

    try:
        arguments = bind(prepared.plan.params, prepared.values)
    except ArgumentError as error:
        help = "a text stands behind the program; `--set NAME=VALUE` gives any value, `--input` many rows of them"
        raise UsageError(str(error), help) from error
    text = prepared.settings.text
    own = frozenset(name for name, value in arguments.items() if text is not None and value == text)
    return InputRow(prepared.plan.name, arguments, own=own)

"""`--analyze`: its options, and a run that measures what a plan takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli.console import put, say, width_of
from qpdsl.cli.exits import Exit
from qpdsl.cli.options.input_options import InputOptions, input_options, read_input
from qpdsl.cli.shared_options import (
    code_option,
    device_option,
    router_option,
    shadow_option,
    statistics_option,
    with_options,
)
from qpdsl.errors import UserError
from qpdsl.garbage_collector import collections_paused
from qpdsl.settings import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qpdsl.dataset.row_outcome import Outcome
    from qpdsl.inputs.input_row import InputRow
    from qpdsl.planner.plan.physical import PhysicalPlan
    from qpdsl.planner.values.value import Value
    from qpdsl.planning.analysis import RunAnalysis
    from qpdsl.session import Session
    from qpdsl.sources.surroundings import Surroundings

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzeOptions(InputOptions):
    """What `explain` takes to run a program; `_OPTIONS` says what each means."""

    analyze: bool
    seed: int | None
    concurrency: int | None
    device: str
    dtype: str | None
    threads: int | None
    router: str | None
    shadow: float | None
    allow_code: bool
    statistics: bool

    def check(self, *, alone: bool) -> None:
        """Raises UsageError where the options do not go together; `alone` is false beside other kinds of plans."""
        from qpdsl.errors import UsageError

        if self.analyze and not alone:
            raise UsageError("`--analyze` shows how one plan ran; leave out `--verbose` and `--against`")
        if not self.analyze:
            for name in ("input", "seed", "concurrency", "shadow"):
                if getattr(self, name) is not None:
                    raise UsageError(f"`--{name}` needs `--analyze`, since without it nothing runs")
        self.check_input()


_OPTIONS = (
    click.option("--analyze", is_flag=True, help="Run the program, and show what it came to beside the estimates."),
    click.option("--seed", type=int, help="Same seed, same tokens.  [default: 0]"),
    click.option("--concurrency", type=click.IntRange(min=1), help="Rows in flight.  [default: what the plan says]"),
    device_option,
    click.option("--dtype", type=click.Choice(DTYPES), help="What to compute in."),
    click.option("--threads", type=click.IntRange(min=1), help="CPU threads."),
    router_option,
    shadow_option,
    code_option,
    statistics_option,
)


def analyze_options(command: Command) -> Command:
    """The options of a command that can run what it explains."""
    return with_options(_OPTIONS[:1], input_options(with_options(_OPTIONS[1:], command)))


def run_analysis(
    session: Session, plan: PhysicalPlan, problems: int, in_flight: int | None = None, *, warm: bool = True
) -> RunAnalysis:
    """Measures a run from now on; see `RunAnalysis`. With `warm`, routers begin with what earlier runs learned."""
    from qpdsl.planning.analysis import RunAnalysis

    analysis = RunAnalysis(session, plan, problems, in_flight)
    if warm:
        analysis.warm_start(lambda line: say(f"note: {line}"))
    return analysis


def remember(analysis: RunAnalysis, *, alone: bool, wanted: bool) -> None:
    """Adds a run to the statistics; see `RunAnalysis.remember`. A failure to do so is no failure of the run."""
    try:
        analysis.remember(alone=alone, wanted=wanted)
    except UserError:
        # There is no cache folder to keep them in, which the user knows.
        pass
    except Exception as error:
        say(f"the statistics do not have this run: {type(error).__name__}: {error}")


def run_for_analysis(
    options: AnalyzeOptions, plan: PhysicalPlan, surroundings: Surroundings, values: Mapping[str, Value], form: str
) -> Exit:
    """Runs a plan, with `values` for its parameters, and prints its analysis, as text or JSON."""
    import json

    from qpdsl.cli.runs.load_notes import LoadNotes
    from qpdsl.cli.signals import interruptible, run_until_interrupted
    from qpdsl.stage_options import check_code

    check_code(plan, allowed=options.allow_code)
    rows = _rows(options, plan, values)
    notes = LoadNotes(plan.models, quiet=form == "json")
    notes.begin()
    with collections_paused():
        from qpdsl.session import Session

    outcomes: dict[int, Outcome] = {}
    with interruptible():
        functions = surroundings.functions.values()
        session = Session(
            options.device,
            options.dtype,
            plan.kv_type,
            threads=options.threads,
            functions=functions,
            router=options.router,
            shadow=options.shadow,
            allow_code=options.allow_code,
        )
        session.load(plan, notes.loaded, notes.slow)
        analysis = run_analysis(session, plan, len(rows), options.concurrency, warm=options.statistics)
        try:
            run_until_interrupted(_run(session, plan, rows, options, outcomes))
        finally:
            if options.statistics:
                remember(analysis, alone=True, wanted=True)
    result = analysis.done()
    put(
        json.dumps(result.to_json(), ensure_ascii=False, indent=2)
        if form == "json"
        else result.text(width_of(sys.stdout))
    )
    failed = [outcome for outcome in outcomes.values() if outcome.error is not None]
    if failed:
        say(f"error: {len(failed)} of {len(outcomes)} rows failed (row `{failed[0].id}`: {failed[0].error})")
        return Exit.ROW_FAILED
    return Exit.OK


def _rows(options: AnalyzeOptions, plan: PhysicalPlan, values: Mapping[str, Value]) -> list[InputRow]:
    """The rows to run: of the input, or a single one of the values. Raises UsageError and DataError."""
    from qpdsl.arguments import ArgumentError, bind
    from qpdsl.errors import UsageError
    from qpdsl.inputs.input_row import InputRow

    if options.input is not None:
        data = read_input(options, plan, values)
        for note in data.notes:
            say(note)
        return list(data.rows)
    try:
        return [InputRow(plan.name, bind(plan.params, values))]
    except ArgumentError as error:
        raise UsageError(str(error), "`--set NAME=VALUE` gives a value, `--input` many rows of them") from error


async def _run(
    session: Session,
    plan: PhysicalPlan,
    rows: Sequence[InputRow],
    options: AnalyzeOptions,
    outcomes: dict[int, Outcome],
) -> None:
    from qpdsl.dataset.job import Job, run_rows

    job = Job(plan, None, options.seed or 0)
    await run_rows(session, job, list(enumerate(rows)), options.concurrency, outcomes.__setitem__)

"""`qpdsl explain`: the plan of a program."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli.console import put, say, width_of
from qpdsl.cli.exits import Exit
from qpdsl.cli.project_command import ProjectCommand
from qpdsl.cli.shared_options import of_pipeline, program_argument, setting_options, text_argument
from qpdsl.errors import UsageError
from qpdsl.executor.runtime.sandbox.permission import UNCONFINED
from qpdsl.session.setting import OneOf, given, setting
from qpdsl.session.settings import MEASURING, OUTPUT, Settings

if TYPE_CHECKING:
    from qpdsl.planner.plan.physical import PhysicalPlan
    from qpdsl.session.prepare import PlanUse, Prepared

_own = partial(setting, on="explain")
_output = partial(_own, heading=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(Settings):
    """What `qpdsl explain` takes besides the settings of all commands."""

    analyze: bool = _own(
        False,
        usual=True,
        heading=MEASURING,
        help="Run the program, and show actual beside estimated cost per operator.",
    )
    rows: bool = _output(False, help="Plan for `run --rows`, where all columns are read and no vote ends early.")
    verbose: bool = _output(
        False,
        usual=True,
        help="Show the naive plan too, and the plan after each rule that changed it.",
    )
    against: str | None = _output(
        usual=True,
        metavar="FILE|NAME|naive",
        help="Compare with the plan of another program, or with the naive plan of this one. --set applies to the "
        "first program only, --model and --adapter to both.",
    )
    form: str = _output("text", usual=True, kind=OneOf("text", "json"), option="--format", help="Output format.")

    def check(self) -> None:
        """Raises UsageError where options do not go together."""
        if self.verbose and self.against is not None:
            raise UsageError("`--verbose` shows how one plan came about, `--against` two plans; give one of them")
        if self.analyze and (self.verbose or self.against is not None):
            raise UsageError("`--analyze` shows how one plan ran; leave out `--verbose` and `--against`")
        for name, _ in given(self):
            if not self.analyze and name in ("input", "seed", "concurrency", "shadow"):
                raise UsageError(f"`--{name}` needs `--analyze`, since without it nothing runs")
        super().check()


@click.command(cls=ProjectCommand)
@program_argument
@text_argument
@setting_options(ExplainOptions, "explain")
def command(**values: Any) -> Exit:
    """Show how a program will run: its operators as a tree, last first, with estimates of the rows they make.

    --verbose says what each rule did to the plan. With --analyze the program runs, on TEXT or on --input, and each
    operator is shown with its measurements beside its estimates.

    \b
    qpdsl explain beam_search --verbose
    qpdsl explain beam_search --against naive
    qpdsl explain beam_search --against dvts
    qpdsl explain beam_search --analyze --input counting-500 --limit 20
    """
    import json

    from qpdsl.cli.diagnostics import show
    from qpdsl.cli.shared_options import policies
    from qpdsl.grammar.printable import printable
    from qpdsl.model_location import stored_weights
    from qpdsl.planner.explain.plan import explain, explain_json
    from qpdsl.planner.explain.versions import compare, compare_json, trace, trace_json
    from qpdsl.session.prepare import PlanUse, bind_program, check_shares, prepare
    from qpdsl.session.user_cache import damaged_files

    options = ExplainOptions(**of_pipeline(values))
    options.check()
    bound = bind_program(options, warn=show)
    check_shares([bound], options)
    for note in damaged_files():
        say(f"note: {note}")
    use = PlanUse(rows=options.rows, confidence=options.rows, alone=True)
    # Without `--analyze` nothing runs, so that a program with code can be shown.
    planning = replace(options, allow_code=options.allow_code if options.analyze else UNCONFINED)
    prepared = prepare(bound, planning, use, policies(options, bound.surroundings))
    if options.analyze:
        from qpdsl.cli.runs.analysis_run import run_for_analysis

        return run_for_analysis(options, prepared, options.form)
    optimized, width = prepared.optimized, width_of(sys.stdout)
    if options.against is not None:
        other = _other(planning, prepared, use)
        shown, data = compare(optimized.plan, other, width), compare_json(optimized.plan, other)
    elif options.verbose:
        shown, data = trace(optimized, width), trace_json(optimized)
    else:
        shown, data = explain(optimized.plan, width), explain_json(optimized.plan)
        if options.keeps_stored_weights and (weights := stored_weights(optimized.plan.models)):
            shown += "".join(f"\nweights of {printable(name)}: {kinds}" for name, kinds in weights.items())
            data["weights"] = weights
    put(json.dumps(data, ensure_ascii=False, indent=2) if options.form == "json" else shown)
    return Exit.OK


def _other(options: ExplainOptions, prepared: Prepared, use: PlanUse) -> PhysicalPlan:
    """The plan to compare with; another program has its parameters at their defaults."""
    from qpdsl.cli.diagnostics import show
    from qpdsl.model_location import check_models
    from qpdsl.session.prepare import bind_program, plan_bound

    if options.against == "naive":
        return prepared.optimized.naive
    settings = replace(
        options, target=options.against, pipeline=None, program=None, assigned=(), within=None, budget=None
    )
    other = plan_bound(bind_program(settings, prepared.bound.surroundings, show), settings, use)
    other.check()
    check_models(other.models.values())
    return other.plan

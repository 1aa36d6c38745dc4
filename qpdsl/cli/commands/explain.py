"""`qpdsl explain`: the plan of a program."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli.console import put, say, width_of
from qpdsl.cli.exits import Exit
from qpdsl.cli.options.budget_options import BudgetOptions, budget_options, policy_of
from qpdsl.cli.runs.analysis_run import AnalyzeOptions, analyze_options
from qpdsl.cli.shared_options import format_option, planning_options, program_options, within_option
from qpdsl.planning.target import Target
from qpdsl.run_store.fingerprint import Computing
from qpdsl.sources.surroundings import Surroundings, read_surroundings

if TYPE_CHECKING:
    from qpdsl.grammar.words import WithinLevel
    from qpdsl.planner.plan.physical import PhysicalPlan
    from qpdsl.planning.planning import Planning


@click.command(short_help="Show the plan of a program, without loading a model.")
@program_options
@planning_options
@within_option
@budget_options
@click.option("--rows", is_flag=True, help="The plan for `run --rows`, where all columns are read.")
@click.option("--verbose", is_flag=True, help="The naive plan too, and the plan after each rule that changed it.")
@click.option(
    "--against",
    metavar="FILE|NAME|naive",
    help="What the plan does otherwise than that of another program, or than the naive plan of this one. `--set` "
    "goes to the first program only, the other's parameters stay at their defaults; `--model` and `--adapter` go to "
    "both.",
)
@analyze_options
@format_option
def command(
    target: str | None,
    pipeline: str | None,
    program: str | None,
    settings: tuple[str, ...],
    models: tuple[str, ...],
    adapters: tuple[str, ...],
    drafts: tuple[str, ...],
    allow_read: tuple[str, ...],
    python: tuple[str, ...],
    plan_kind: str,
    disabled: tuple[str, ...],
    exit_heads: tuple[str, ...],
    within: WithinLevel | None,
    budget: str | None,
    rows: bool,
    verbose: bool,
    against: str | None,
    form: str,
    **analyzing: Any,
) -> Exit:
    """Show how a program will run: its operators as a tree, last first, with estimates of the rows they make.

    With --analyze the program runs, and each operator is shown with its measurements beside its estimates.

    \b
    qpdsl explain beam_search --verbose
    qpdsl explain beam_search --against naive
    qpdsl explain beam_search --against dvts
    qpdsl explain beam_search --analyze --input counting-500 --limit 20
    """
    import json

    from qpdsl.arguments import parse_settings, with_defaults
    from qpdsl.cli.diagnostics import show
    from qpdsl.errors import UsageError
    from qpdsl.grammar.printable import printable
    from qpdsl.model_location import stored_weights
    from qpdsl.planner.explain.plan import explain, explain_json
    from qpdsl.planner.explain.versions import compare, compare_json, trace, trace_json
    from qpdsl.planning.exit_heads import exit_heads_of
    from qpdsl.planning.planning import Planning, reads_of
    from qpdsl.planning.routed import check_routed
    from qpdsl.planning.user_cache import damaged_files
    from qpdsl.sources.programs import load_program, permitting

    if verbose and against is not None:
        raise UsageError("`--verbose` shows how one plan came about, `--against` two plans; give one of them")
    planning = Planning.of(plan_kind, disabled)
    options = AnalyzeOptions(**analyzing)
    options.check(alone=not verbose and against is None)
    heads = tuple(exit_heads_of(exit_heads).items())
    runs_on = Target(options.device, options.dtype, options.threads, options.router, heads)
    surroundings = read_surroundings(allow_read, python, models, adapters, drafts)
    lowered = load_program(target, pipeline, program, surroundings, settings)
    show(lowered.warnings)
    lowered = permitting(lowered, within)
    for note in damaged_files():
        say(f"note: {note}")
    values = parse_settings(lowered.params, settings, lowered.name, lowered.model_params)
    lowered = BudgetOptions(budget=budget).budgeting(with_defaults(lowered, values))
    computing = Computing(device=options.device, dtype=options.dtype, router=options.router)
    policy = policy_of(lowered, values, computing, str(planning), surroundings.python)
    optimized = planning.optimized(lowered, reads_of(lowered, rows=rows), runs_on, policy=policy)
    _check(optimized.plan)
    check_routed(optimized.plan, options.router)
    if options.analyze:
        from qpdsl.cli.runs.analysis_run import run_for_analysis

        return run_for_analysis(options, optimized.plan, surroundings, values, form)
    width = width_of(sys.stdout)
    if against is not None:
        other = optimized.naive if against == "naive" else _other(against, surroundings, planning, runs_on, rows)
        shown, data = compare(optimized.plan, other, width), compare_json(optimized.plan, other)
    elif verbose:
        shown, data = trace(optimized, width), trace_json(optimized)
    else:
        shown, data = explain(optimized.plan, width), explain_json(optimized.plan)
        if runs_on.keeps_stored_weights and (weights := stored_weights(optimized.plan.models)):
            shown += "".join(f"\nweights of {printable(name)}: {kinds}" for name, kinds in weights.items())
            data["weights"] = weights
    put(json.dumps(data, ensure_ascii=False, indent=2) if form == "json" else shown)
    return Exit.OK


def _check(physical: PhysicalPlan) -> None:
    from qpdsl.arguments import bind
    from qpdsl.model_location import check_models
    from qpdsl.stage_options import check_options

    check_models(physical.models.values())
    check_options(physical, bind([param for param in physical.params if param.default is not None], {}))


def _other(name: str, surroundings: Surroundings, planning: Planning, target: Target, rows: bool) -> PhysicalPlan:
    """The plan of another program, with its parameters at their defaults."""
    from qpdsl.cli.diagnostics import show
    from qpdsl.planning.planning import reads_of
    from qpdsl.sources.programs import load_program

    lowered = load_program(name, None, None, surroundings)
    show(lowered.warnings)
    physical = planning.optimized(lowered, reads_of(lowered, rows=rows), target).plan
    _check(physical)
    return physical

"""`qpdsl run`: one answer, or one for every row of a file."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli.console import say
from qpdsl.cli.options.budget_options import budget_options, counts_cost, policy_of, warn_of_budget
from qpdsl.cli.options.cluster_options import cluster_options
from qpdsl.cli.options.grading_options import grading_options
from qpdsl.cli.options.input_options import input_options
from qpdsl.cli.options.session_options import computing_options, spending_options
from qpdsl.cli.runs.run_options import RunOptions
from qpdsl.cli.shared_options import (
    FileName,
    code_option,
    planning_options,
    program_options,
    router_option,
    shadow_option,
    statistics_option,
    within_option,
)
from qpdsl.cli.signals import interruptible
from qpdsl.errors import UsageError
from qpdsl.planner.plan.physical import KV_TYPES
from qpdsl.settings import check_memory, check_threads, check_timeout

if TYPE_CHECKING:
    from qpdsl.planner.budget.budget_policy import BudgetPolicy
    from qpdsl.planner.cost.timing import Load
    from qpdsl.planner.optimize.optimizer import Optimized
    from qpdsl.planner.plan.logical import LogicalProgram
    from qpdsl.planner.values.value import Value


@click.command(short_help="Run a program: one answer, or one for every row of a file.")
@program_options
@planning_options
@within_option
@budget_options
@input_options
@click.option(
    "--output",
    metavar="FILE",
    type=FileName(dash="without `--output` the results go to stdout"),
    help="Where the results of --input go, whole or not at all. Without it they go to stdout. Either way the run is "
    "kept: `qpdsl runs`.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same tokens.")
@click.option("--json", is_flag=True, help="Print JSON: with --input and --output the summary; records always are.")
@click.option("--rows", is_flag=True, help="Give all final rows with all their columns too.")
@click.option("--timing", is_flag=True, help="Give seconds, and tokens a second.")
@click.option("--greedy/--no-greedy", default=True, help="Compare with greedy decoding.  [default: yes]")
@click.option(
    "--analyze",
    is_flag=True,
    help="Say on stderr what each operator came to beside what was expected of it, and remember it for later plans. "
    "Greedy decoding is left out.",
)
@router_option
@shadow_option
@code_option
@click.option(
    "--record-routes",
    metavar="FILE",
    type=FileName(dash="what is recorded has a file of its own"),
    help="With --router: try every way at each step, tell what the best choices would have come to, and write it all "
    "to FILE as JSON lines.",
)
@statistics_option
@click.option("--resume", is_flag=True, help="Go on with the unfinished run of the same program, values and rows.")
@click.option(
    "--reuse", is_flag=True, help="Take rows over that a kept run of the same program and values has computed."
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace the results in --output, the trace in --trace and the steps in --record-routes.",
)
@click.option(
    "--concurrency", type=click.IntRange(min=1), help="Rows of --input in flight.  [default: what the plan says]"
)
@click.option(
    "--row-timeout",
    type=float,
    metavar="SECONDS",
    help="A row that takes longer than this fails, and the others go on.  [default: as long as it takes]",
)
@cluster_options
@grading_options
@computing_options
@click.option(
    "--trace",
    metavar="FILE",
    type=FileName(dash="a trace has a file of its own"),
    help="Write what happens to FILE as it happens; `qpdsl replay` and `qpdsl report` show it.",
)
@spending_options
@click.option("--tui", is_flag=True, help="Watch the run on a dashboard; `qpdsl top` does so from another terminal.")
def command(**values: Any) -> int:
    """Run a program file, a program shipped with qpdsl (by its NAME), or a pipeline; `-` reads a program from stdin.

    The answer goes to stdout, notes go to stderr. Ctrl-C keeps the rows that are finished.

    \b
    qpdsl run beam_search --set problem="Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
    qpdsl run beam_search --input counting-500 --output out.jsonl
    qpdsl run my.qp --model llm=Qwen/Qwen3-0.6B --adapter llm=./my-lora --set problem="…"
    qpdsl run -e 'chat user=q | generate llm n=8 temperature=0.8 | extract a=/(\\d+)\\.$/ | vote a' --set q="…"
    """
    options = RunOptions(**values)
    _check(options)
    with interruptible():
        return _run(options, click.get_current_context().find_root().obj or ())


def _check(options: RunOptions) -> None:
    if options.input is None:
        for name in ("output", "resume", "reuse", "concurrency"):
            if getattr(options, name):
                raise UsageError(f"`--{name}` needs `--input`")
    elif options.output is None and options.json:
        raise UsageError("`--json` with `--input` needs `--output`", "without it, stdout has the records as JSON lines")
    if options.overwrite and options.output is None and options.trace is None and options.record_routes is None:
        raise UsageError("`--overwrite` needs `--output`, `--trace` or `--record-routes`")
    if options.record_routes is not None and options.router in (None, "none"):
        raise UsageError("`--record-routes` needs `--router`, without which nothing is routed")
    if options.target == "-" and options.input == "-":
        raise UsageError("the program and `--input` cannot both come from standard input")
    options.check_input()
    options.check_grading(has_input=options.input is not None)
    options.check_cluster()
    options.check_spending()
    check_timeout(options.row_timeout)
    check_threads(options.threads)
    check_memory(options.kv_memory, options.device)
    if options.tui and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "`--tui` needs a terminal", "`--trace FILE` records the run, for `qpdsl replay` and `qpdsl report`"
        )


def _load(options: RunOptions) -> Load:
    """What the plan is for: many problems or one, and the KV memory where the option says it in bytes."""
    from qpdsl.executor.engine.memory.budget import parse
    from qpdsl.planner.cost.timing import Load
    from qpdsl.planner.optimize.by_cost import PROBLEMS

    load = Load(1 if options.input is None else PROBLEMS)
    if options.kv_memory is None or "%" in options.kv_memory:
        return load
    return replace(load, kv_bytes=parse(options.kv_memory))


def _with_kv_type_of_run(
    options: RunOptions, program: LogicalProgram, values: Mapping[str, Value]
) -> tuple[RunOptions, bool]:
    """The options with the KV type of the run to resume, and whether there is such a run.

    A plan made now could choose another type, by what was measured since that run began.
    """
    from qpdsl.run_store.resumption import probably_resumed
    from qpdsl.run_store.run_folder import RunFolder

    record = probably_resumed(RunFolder(), program.name, options.seed, values)
    kv_type = None if record is None else record.fingerprint.get("kv type")
    return replace(options, kv_type=kv_type if kv_type in KV_TYPES else None), record is not None


def _policy_of_run(options: RunOptions, program: LogicalProgram, values: Mapping[str, Value]) -> BudgetPolicy | None:
    """What the run to resume decides by under the same budget; None where there is none.

    What is learned now could be another policy, by the runs that were kept since that run began.
    """
    from qpdsl.planner.budget.budget_policy import BudgetPolicy
    from qpdsl.planner.ways.open_program import ways_of
    from qpdsl.planner.ways.strategy_plan import reached_ways
    from qpdsl.run_store.resumption import probably_resumed
    from qpdsl.run_store.run_folder import RunFolder

    record = probably_resumed(RunFolder(), program.name, options.seed, values) if program.ways else None
    if record is None or record.policy is None or program.budget is None:
        return None
    policy = BudgetPolicy.from_json(record.policy)
    same = (policy.unit, policy.budget) == (program.budget.unit, program.budget.amount)
    return policy if same and {*reached_ways(policy)} <= {*ways_of(program)} else None


def _run(options: RunOptions, argv: Sequence[str]) -> int:
    from qpdsl.arguments import parse_settings, settings_files, with_defaults
    from qpdsl.cli.diagnostics import show
    from qpdsl.cli.runs.run_files import run_files
    from qpdsl.cli.runs.server_check import ask_servers, refuse_unmet, source_of
    from qpdsl.dataset.job import Job
    from qpdsl.model_location import check_models
    from qpdsl.planner.plan.baseline import greedy_of
    from qpdsl.planner.plan.physical import head_folders
    from qpdsl.planning.exit_heads import exit_heads_of
    from qpdsl.planning.planning import Planning, reads_of
    from qpdsl.planning.routed import check_routed, routes_exits
    from qpdsl.planning.target import Target
    from qpdsl.planning.user_cache import damaged_files
    from qpdsl.sources.programs import load_program, permitting
    from qpdsl.stage_options import check_code, check_options

    planning = Planning.of(options.plan_kind, options.disabled)
    surroundings = options.surroundings()
    program = load_program(options.target, options.pipeline, options.program, surroundings, options.settings)
    show(program.warnings)
    program = permitting(program, options.within)
    values = parse_settings(program.params, options.settings, program.name, program.model_params)
    surroundings.read.update(file.absolute() for file in settings_files(program.params, options.settings))
    # The plan depends on the values of the parameters, and so does what they leave to a budget.
    program = options.budgeting(with_defaults(program, values))
    options.check_used(program.models.values())
    options.check_prices(program.models.values(), budget=counts_cost(program))
    abilities = ask_servers(program.models, options.server_timeout, quiet=options.json)
    baseline = greedy_of(program) if options.greedy and not options.analyze else None
    text = options.input is None
    reads = reads_of(program, rows=options.rows or options.candidates, text=text)
    heads = tuple(exit_heads_of(options.exit_heads).items())
    target = Target(options.device, options.dtype, options.threads, options.router, heads)
    kv_type_known = options.kv_type is not None
    loses = program.within is not None and program.within.level in ("epsilon", "loss")
    if options.resume and loses and options.exit_heads:
        message = "`--resume` goes on with the plan of before, and `--exit-head` may lead to another"
        raise UsageError(message, "write the early exit into the program: `via amortized(…)`")
    if options.resume and loses and not kv_type_known:
        options, kv_type_known = _with_kv_type_of_run(options, program, values)
    kv_types = not kv_type_known
    policy = _policy_of_run(options, program, values) if options.resume else None
    if policy is None:
        policy = policy_of(program, values, options.computing, str(planning), surroundings.python)

    def planned_by(policy: BudgetPolicy | None) -> Optimized:
        more = {"kv_types": kv_types, "support": options.candidates}
        return planning.optimized(program, reads, target, _load(options), **more, policy=policy)

    optimized = planned_by(policy)
    greedy = None if baseline is None else planning.optimized(baseline, reads_of(baseline, text=text), target).plan
    check_routed(optimized.plan, options.router)
    if options.resume and routes_exits(optimized.plan):
        message = "`--resume` goes on with tokens that depend on what a router knew, which `--router` may not know now"
        raise UsageError(message, "leave out `--router`, or start over with `--overwrite`")
    job = Job(
        optimized.plan,
        greedy,
        options.seed,
        options.rows,
        optimized.naive,
        str(planning),
        options.row_timeout,
        source=program.text,
        with_candidates=options.candidates,
    )
    plans = (job.plan, *([] if greedy is None else [greedy]))
    refuse_unmet(plans, abilities, lambda: source_of(options.target, options.pipeline))
    check_options(job.plan, values)
    check_code(job.plan, allowed=options.allow_code)
    # Before torch is imported, which takes seconds.
    check_models(job.models.values())
    files = run_files(options, job.models, {*head_folders(job.plan), *dict(heads).values()}, surroundings)
    if options.tui:
        from qpdsl.cli.runs.dashboard import run_watched

        return run_watched(argv, "search" if options.input is None else "plan")
    for note in damaged_files():
        say(f"note: {note}")
    if options.input is None:
        from qpdsl.cli.runs.single_run import answer

        warn_of_budget(optimized.plan.policy)
        return answer(options, job, surroundings, values, files)
    from qpdsl.cli.runs.data_set_run import answer_rows
    from qpdsl.cli.sweeps.budget_warm_up import warm_up_ways

    unlikely = optimized.plan.policy is not None and optimized.plan.policy.keeps is False
    if unlikely:
        # Before the warm-up, which takes a while.
        warn_of_budget(optimized.plan.policy)
    if warm_up_ways(options, job, program, planning, target, surroundings, values, argv):
        policy = policy_of(program, values, options.computing, str(planning), surroundings.python)
        optimized = planned_by(policy)
        job = replace(job, plan=optimized.plan, written=optimized.naive)
    elif not unlikely:
        warn_of_budget(optimized.plan.policy)
    return answer_rows(options, job, surroundings, values, files, argv)

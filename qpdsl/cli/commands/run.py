"""`qpdsl run`: one answer, or one for every row of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli.console import say
from qpdsl.cli.project_command import ProjectCommand
from qpdsl.cli.runs.run_options import RunOptions, plan_use
from qpdsl.cli.shared_options import of_pipeline, program_argument, setting_options, text_argument
from qpdsl.cli.signals import interruptible
from qpdsl.errors import UsageError

if TYPE_CHECKING:
    from qpdsl.cli.watched import WatchedProcess
    from qpdsl.planner.plan.budget_policy import BudgetPolicy
    from qpdsl.planner.plan.logical import LogicalProgram
    from qpdsl.planner.values.value import Value
    from qpdsl.session.prepare import BoundProgram, PlanUse, Policies, Prepared


@click.command(cls=ProjectCommand)
@program_argument
@text_argument
@setting_options(RunOptions, "run", overwrite="Replace the files of --output and --trace.")
def command(**values: Any) -> int:
    """Run a program file, a program shipped with qpdsl (by its NAME), or a pipeline; `-` reads a program from stdin.

    TEXT is the value of the one text parameter that has none. The answer goes to stdout, notes go to stderr. Ctrl-C
    keeps the finished rows.

    \b
    qpdsl run beam_search "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
    qpdsl run beam_search --input counting-500 --output out.jsonl
    qpdsl run my.qp --model llm=Qwen/Qwen3-0.6B --adapter llm=./my-lora "…"
    qpdsl run -e 'chat user=q | generate llm n=8 temperature=0.8 | extract a=/(\\d+)\\.$/ | vote a' "…"
    """
    options = RunOptions(**of_pipeline(values))
    options.check()
    with interruptible():
        return _run(options, click.get_current_context().find_root().obj or ())


def _run(options: RunOptions, argv: Sequence[str]) -> int:
    from qpdsl.cli.diagnostics import show
    from qpdsl.cli.shared_options import spoken
    from qpdsl.cli.watched import watched
    from qpdsl.session.prepare import bind_program

    bound = bind_program(options, warn=show)
    if options.tui:
        from qpdsl.cli.runs.dashboard import run_watched

        return run_watched(argv, "search" if options.input is None else "plan")
    with watched("run", [bound.program.name], options.cluster, **spoken(options, quiet=options.json)) as process:
        return _answered(process, options, bound, argv)


def _answered(process: WatchedProcess, options: RunOptions, bound: BoundProgram, argv: Sequence[str]) -> int:
    from qpdsl.cli.runs.run_files import run_files
    from qpdsl.cli.shared_options import asking, policies
    from qpdsl.session.prepare import ask_servers, prepare
    from qpdsl.session.user_cache import damaged_files

    servers = ask_servers([bound], options, asking(process))
    options, use = _as_resumed(options, bound, plan_use(options))
    process.prepare("planning" if options.budget is None else "learning what the budget buys")
    policy = policies(options, bound.surroundings)
    prepared = prepare(bound, options, use, _resuming(options, policy), servers)
    _check_resumed(options, prepared)
    # Before torch is imported, which takes seconds.
    files = run_files(options, prepared)
    for note in damaged_files():
        say(f"note: {note}")
    if options.input is None:
        from qpdsl.cli.runs.single_run import answer

        _tell_budget(options, prepared.plan.policy)
        return answer(process, options, prepared, files)
    from qpdsl.cli.runs.data_set_run import answer_rows

    if _warmed_up(process, options, prepared, argv):
        prepared = prepare(bound, options, use, policy, servers)
        _tell_budget(options, prepared.plan.policy)
    return answer_rows(process, options, prepared, files, argv)


def _warmed_up(process: WatchedProcess, options: RunOptions, prepared: Prepared, argv: Sequence[str]) -> bool:
    """Whether there is more to learn a policy from, by a warm-up. Warns where a budget may not be kept."""
    from qpdsl.cli.runs.budget_warm_up import warm_up_strategies

    policy = prepared.plan.policy
    unlikely = policy is not None and policy.keeps is False
    if unlikely:
        # Before the warm-up, which takes a while.
        _tell_budget(options, policy)
    if warm_up_strategies(process, options, prepared, argv):
        return True
    if not unlikely:
        _tell_budget(options, policy)
    return False


def _tell_budget(options: RunOptions, policy: BudgetPolicy | None) -> None:
    """Warns where a budget may not be kept, and says what decided, where another run may decide otherwise."""
    from qpdsl.cli.shared_options import warn_of_budget

    warn_of_budget(policy)
    if policy is None or options.resume or options.policy is not None:
        return
    told = policy.promise is None and not policy.keeps
    learned = f"{'' if policy.expected is None else 'learned from '}{policy.learned_from}"
    first = "" if told else f"`{policy.ways[policy.first].name}` runs first: {learned}; "
    say(f"note: {first}`--policy RUN` decides as a run did, whatever was saved since")


def _as_resumed(options: RunOptions, bound: BoundProgram, use: PlanUse) -> tuple[RunOptions, PlanUse]:
    """The options with the KV type of the run to resume, if there is one.

    A plan made now could choose another type, by what was measured since that run began. Raises UsageError.
    """
    from qpdsl.grammar.words import KV_TYPES
    from qpdsl.runs.store.continuing import probably_resumed
    from qpdsl.runs.store.run_folder import RunFolder
    from qpdsl.session.prepare import loses

    if not options.resume or not loses(bound.program):
        return options, use
    if options.exit_heads:
        message = "`--resume` goes on with the plan of before, and `--exit-head` may lead to another"
        raise UsageError(message, "write the early exit into the program: `via amortized(…)`")
    if options.kv_type is not None:
        return options, use
    record = probably_resumed(RunFolder(), bound.program.name, options.seed or 0, bound.values)
    kv_type: Any = None if record is None else record.fingerprint.get("kv type")
    return replace(options, kv_type=kv_type if kv_type in KV_TYPES else None), replace(use, alone=record is None)


def _resuming(options: RunOptions, learned: Policies) -> Policies:
    """What the run to resume decides by under the same budget, else what is learned.

    What is learned now could be another policy, by the runs that were saved since that run began. One that `--policy`
    names goes before.
    """

    def policy(program: LogicalProgram, values: Mapping[str, Value]) -> BudgetPolicy | None:
        resumes = options.resume and options.policy is None
        resumed = _policy_of_run(options, program, values) if resumes else None
        return learned(program, values) if resumed is None else resumed

    return policy


def _policy_of_run(options: RunOptions, program: LogicalProgram, values: Mapping[str, Value]) -> BudgetPolicy | None:
    from qpdsl.runs.store.continuing import policy_of, probably_resumed
    from qpdsl.runs.store.run_folder import RunFolder

    record = probably_resumed(RunFolder(), program.name, options.seed or 0, values)
    return None if record is None else policy_of(record, program)


def _check_resumed(options: RunOptions, prepared: Prepared) -> None:
    """Raises UsageError for a run that cannot be resumed."""
    from qpdsl.session.planning import routes_exits

    if options.resume and routes_exits(prepared.plan):
        message = "`--resume` goes on with tokens that depend on what a router knew, which `--router` may not know now"
        raise UsageError(message, "leave out `--router`, or start over with `--overwrite`")

"""Options of commands, made from the settings, and help that groups them by heading.

What settings say of rows, for the commands that run them: the data, its grader, and what a budget decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli import proposals
from qpdsl.cli.console import keep_quiet, put, say
from qpdsl.session.setting import (
    STDOUT,
    FilePath,
    Flag,
    FlagOrWord,
    Number,
    OneOf,
    Router,
    Seconds,
    Setting,
    Whole,
    declared,
    option_of,
)
from qpdsl.session.settings import HEADINGS, OUTPUT, Settings

if TYPE_CHECKING:
    from qpdsl.cli.watched import WatchedProcess
    from qpdsl.planner.plan.budget_policy import BudgetPolicy
    from qpdsl.planner.plan.logical import LogicalProgram
    from qpdsl.planner.plan.physical import PhysicalPlan
    from qpdsl.planner.values.value import Value
    from qpdsl.runs.data.input_row import InputData
    from qpdsl.runs.graders.grader import Grader
    from qpdsl.session.prepare import Policies
    from qpdsl.session.surroundings import Surroundings


Command = Callable[..., Any]
# What a flag without its word stands for.
_ON = "on"
# More options than those, that are not usual, are left to `--help-all`; what stands in a context's `meta` then.
_FEW, _ALL = 12, "qpdsl.cli.help_all"
if TYPE_CHECKING:
    _ParamType = click.ParamType[str]
else:
    # Earlier versions of click do not have it generic.
    _ParamType = click.ParamType


class FileName(_ParamType):
    """The type of every option that names a file or a folder; `dash`: see `FilePath`."""

    name = "file"

    def __init__(self, dash: str | None = None) -> None:
        self._dash = dash

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("it takes a name, not an empty text", param, ctx)
        if value == "-" and self._dash == STDOUT:
            return None
        if value == "-" and self._dash is not None:
            self.fail(f"`-` is no file here; {self._dash}", param, ctx)
        return str(value)


class HeadedOption(click.Option):
    """An option that the help of a `HeadedCommand` shows under a heading, the short one if it is `usual`."""

    def __init__(self, *args: Any, heading: str, usual: bool = True, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.heading = heading
        self.usual = usual


class WordOption(HeadedOption):
    """A flag that takes a word too, which stands behind `=`: `--flag` or `--flag=word`."""

    def make_metavar(self, *args: Any, **keywords: Any) -> str:
        return f"[={self.metavar}]"


class HeadedCommand(click.Command):
    """A command whose help groups the options by heading, those that are usual alone where there are many."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        if not self._unusual(params):
            return params
        every = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show all options.",
        )
        return [*params[:-1], every, params[-1]]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # A value of its own would be the next word of the line, which may be the program.
        bare = {name for one in self.get_params(ctx) if isinstance(one, WordOption) for name in one.opts}
        end = args.index("--") if "--" in args else len(args)
        given = [f"{arg}={_ON}" if arg in bare else arg for arg in args[:end]]
        return super().parse_args(ctx, [*given, *args[end:]])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
        params = self.get_params(ctx)
        left_out = [] if ctx.meta.get(_ALL) else self._unusual(params)
        for param in params:
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option) and param not in left_out:
                groups.setdefault(getattr(param, "heading", "Other"), []).append(record)
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
        if left_out:
            headings = [heading.lower() for heading in dict.fromkeys(param.heading for param in left_out)]
            formatter.write(f"\n`--help-all` has {len(left_out)} more: {', '.join(headings)}\n")

    @staticmethod
    def _unusual(params: Iterable[click.Parameter]) -> list[HeadedOption]:
        """What the short help leaves out: nothing of a command with few options."""
        found = [param for param in params if isinstance(param, HeadedOption) and not param.usual]
        return found if len(found) > _FEW else []


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_ALL] = True
        put(ctx.get_help())
        ctx.exit()


program_argument = click.argument(
    "target", metavar="[FILE|NAME]", required=False, shell_complete=proposals.complete_programs
)


text_argument = click.argument("text", metavar="[TEXT]", required=False)


def of_pipeline(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a command line, where behind `-e PIPELINE` the first word is the text and no program."""
    from qpdsl.session.programs import shipped_sources

    word = values["target"]
    if values["pipeline"] is None or values["text"] is not None or word is None:
        return values
    return values if word.endswith(".qp") or word in shipped_sources() else values | {"target": None, "text": word}


def targets_argument(*, required: bool) -> Callable[[Command], Command]:
    """The programs that a command takes by file or name."""
    metavar = "FILE|NAME..." if required else "[FILE|NAME]..."
    return click.argument(
        "targets", metavar=metavar, nargs=-1, required=required, shell_complete=proposals.complete_programs
    )


format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    cls=HeadedOption,
    heading=OUTPUT,
    help="Output format.",
)


def replay_options(command: Command) -> Command:
    """The rows of a saved run that are run again to be shown."""
    rows = click.option("--rows", type=click.IntRange(min=1), metavar="N", help="Of a saved run, the first N rows.")
    row = click.option("--row", "ids", metavar="ID", multiple=True, help="Of a saved run, this row. Repeatable.")
    return row(rows(command))


def setting_options(settings: type, command: str, **help: str) -> Callable[[Command], Command]:
    """The options of a command: the settings that it takes. `help` has its own text for some of them, by name."""
    taken = [(name, known, default) for name, known, default in declared(settings) if command in known.on.split()]
    headings = [*HEADINGS, *(known.heading for _, known, _ in taken)]
    taken.sort(key=lambda one: headings.index(one[1].heading))
    options = [setting_option(name, known, default, help.get(name, known.help)) for name, known, default in taken]

    def decorated(function: Command) -> Command:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


def setting_option(name: str, known: Setting, default: Any, help: str) -> Callable[[Command], Command]:
    """The option of a setting."""
    option = option_of(name, known)
    cls, metavar = HeadedOption, known.metavar
    attributes: dict[str, Any] = {"type": _type(known)}
    shown = None if "[default:" in help else known.shown
    if isinstance(known.kind, Flag):
        attributes = {"is_flag": True, "default": default}
        if default:
            option, shown = f"{option}/--no-{option.removeprefix('--')}", "yes"
    elif isinstance(known.kind, FlagOrWord):
        cls, metavar = WordOption, known.kind.word
        attributes |= {"callback": lambda ctx, param, value: default if value is None else value == _ON or value}
    elif known.multiple:
        attributes |= {"multiple": True, "callback": lambda ctx, param, value: known.kind.read(value)}
    elif default is not None:
        attributes |= {"default": default, "show_default": shown is None}
    if known.complete is not None and known.complete not in _TYPES:
        attributes["shell_complete"] = getattr(proposals, f"complete_{known.complete}")
    return click.option(
        *filter(None, (known.short, option)),
        name,
        cls=cls,
        heading=known.heading,
        usual=known.usual,
        metavar=metavar,
        envvar=known.envvar,
        help=help if shown is None else f"{help}  [default: {shown}]",
        **attributes,
    )


def _type(known: Setting) -> Any:
    match known.kind:
        case OneOf(known=words) | Router(known=words):
            return click.Choice(words)
        case FlagOrWord(word=word):
            return click.Choice((_ON, word))
        case Whole(low=None, high=None):
            return int
        case Whole(low=low, high=high):
            return click.IntRange(low, high)
        case Number(low=low, high=high, above=above):
            return click.FloatRange(low, None if high == float("inf") else high, min_open=above)
        case Seconds():
            return float
        case FilePath(dash=dash):
            return FileName(dash)
    return _TYPES[known.complete]() if known.complete in _TYPES else str


def _data_form() -> Any:
    from qpdsl.runs.data.known_sets import FORMS

    return click.Choice(list(FORMS))


# Values that something else knows, by what proposes them.
_TYPES = {"forms": _data_form}

# How the names of graders begin that read other fields of a row than the right answer.
_READERS = ("code", "ifeval", "calls", "python:")


def read_input(
    settings: Settings, plan: PhysicalPlan, values: Mapping[str, Value], used: Collection[str] | None = ()
) -> InputData:
    """The rows of `--input`, of which there must be one; `values` are for parameters that a row does not set.

    `used` are fields that something else reads: see `read_rows`. Raises DataError and UsageError.
    """
    from qpdsl.runs.data.data_source import data_source
    from qpdsl.runs.data.rows import read_rows

    assert settings.input is not None
    return read_rows(data_source(settings.input), plan, values, settings.of_data, used)


def graded_input(settings: Settings, plan: PhysicalPlan, values: Mapping[str, Value]) -> InputData:
    """The same, where the fields that are read for grading and for groups are used too."""
    # None: a grader may read any.
    used = None if (settings.grader or "").startswith(_READERS) else tuple(filter(None, (settings.by,)))
    return read_input(settings, plan, values, used)


def grader_for(settings: Settings, data: InputData, surroundings: Surroundings) -> Grader:
    """What grades the answers to this data: the named one, else what goes with a named data set, else equality.

    Raises UsageError, also where a grader is named that can grade none of the rows.
    """
    from qpdsl.runs.graders.known_graders import grader_named, grader_of, grades_any

    def named(name: str) -> Grader:
        return grader_named(name, allow_code=settings.allow_code, judge=lambda target: _judge(target, surroundings))

    grader = grader_of(data, settings.grader, named)
    if data.grader is not None and not grades_any(grader, data):
        say(f"warning: no row has a right answer that the grader `{data.grader}` can use, so nothing is graded")
    return grader


def policies(settings: Settings, surroundings: Surroundings) -> Policies:
    """What a program under a budget decides by: that of a run that is named, else what the saved runs teach."""

    def policy(program: LogicalProgram, values: Mapping[str, Value]) -> BudgetPolicy | None:
        if settings.policy is not None:
            return _policy_of(settings.policy, program)
        from qpdsl.budgets.policy_for import program_policy
        from qpdsl.session.planning import Planning

        planned = str(Planning.of(settings.plan_kind, settings.disabled))
        return program_policy(program, values, settings, planned=planned, python=surroundings.python)

    return policy


def _policy_of(name: str, program: LogicalProgram) -> BudgetPolicy:
    """What a saved run decided by. Raises UsageError where it had no such budget, or other strategies."""
    from qpdsl.errors import UsageError
    from qpdsl.runs.store.continuing import policy_of
    from qpdsl.runs.store.run_file import RunFile
    from qpdsl.runs.store.run_folder import RunFolder

    with RunFile.reading(RunFolder().find(name)) as run:
        policy = policy_of(run.record, program)
        if policy is None:
            raise UsageError(
                f"`--policy`: run `{run.id}` decided nothing for `{program.name}` under this budget",
                "`qpdsl runs` shows the budgets of runs",
            )
    return policy


def warn_of_budget(*policies: BudgetPolicy | None) -> None:
    """Says once of each policy that it may not keep its budget, where that is so."""
    from qpdsl.planner.plan.budget_policy import doubt

    for words in dict.fromkeys(doubt(policy) for policy in policies if policy is not None):
        if words is not None:
            say(words)


def spoken(settings: Settings, *, quiet: bool = False) -> dict[str, Any]:
    """What `watched` takes of the settings on what is said of a process; under `--quiet` no note is from now on."""
    if settings.quiet:
        keep_quiet()
    return {
        "quiet": quiet or settings.quiet,
        "verbose": settings.verbose,
        "patience": settings.patience,
    }


def asking(process: WatchedProcess | None = None) -> Callable[[str], None]:
    """Says how a probe of a server is: to whoever watches the process, or without one on stderr."""
    return (lambda words: say(f"note: {words} …")) if process is None else process.prepare


def _judge(target: str, surroundings: Surroundings) -> Grader:
    from qpdsl.planner.optimize.by_cost import NAME
    from qpdsl.runs.graders.judge_program import JudgeProgram
    from qpdsl.runs.store.fingerprint import digest, operators
    from qpdsl.session.prepare import bind_program, plan_bound
    from qpdsl.session.surroundings import Surroundings

    # The judge has models of its own: `--model` is about the program that is judged. A plan by rules alone, so that the
    # digest is the same on each machine.
    own = Surroundings(surroundings.allowed, surroundings.functions)
    settings = Settings(target=target, disabled=(NAME,))
    plan = plan_bound(bind_program(settings, own), settings).plan
    return JudgeProgram(plan, digest([operators(plan.ops), dict(plan.models)]))

"""The options that commands share, each defined once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli.proposals import (
    complete_adapters,
    complete_models,
    complete_names,
    complete_programs,
    complete_rules,
    complete_settings,
)

Command = Callable[..., Any]
_POLICIES = ("lin_ucb", "thompson", "exponential")
if TYPE_CHECKING:
    from qpdsl.sources.surroundings import Surroundings

    _ParamType = click.ParamType[str]
else:
    # Earlier versions of click do not have it generic.
    _ParamType = click.ParamType


def _device(ctx: click.Context, param: click.Parameter, value: str) -> str:
    from qpdsl.settings import check_device

    check_device(value)
    return value


class FileName(_ParamType):
    """The type of every option that names a file or a folder. `dash` says why `-` is none, where it means nothing."""

    name = "file"

    def __init__(self, dash: str | None = None) -> None:
        self._dash = dash

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            self.fail("it takes a name, not an empty text", param, ctx)
        if value == "-" and self._dash is not None:
            self.fail(f"`-` is no file here; {self._dash}", param, ctx)
        return str(value)


_READING = (
    click.option(
        "--allow-read",
        metavar="FOLDER",
        multiple=True,
        type=FileName(),
        help="Let programs read files under this folder too; else they read under their own only.",
    ),
    click.option(
        "--python",
        metavar="FILE",
        multiple=True,
        type=FileName(),
        help="Run a Python file, and let programs use the scorers and extractors that it registers.",
    ),
)

code_option = click.option(
    "--allow-code",
    is_flag=True,
    help="Let `score passes(…)` run code that a model wrote, in a sandbox.",
)

_TARGET = (
    click.argument("target", metavar="[FILE|NAME]", required=False, shell_complete=complete_programs),
    click.option("-e", "pipeline", metavar="PIPELINE", help="Take stages given here, parted by `|`, not a file."),
)


_PROGRAM = (
    click.option(
        "--program", metavar="NAME", help="Which program of a file that has several.", shell_complete=complete_names
    ),
    click.option(
        "--set",
        "settings",
        metavar="NAME=VALUE",
        multiple=True,
        help="The value of a parameter.",
        shell_complete=complete_settings,
    ),
    click.option(
        "--model",
        "models",
        metavar="NAME=ID|PATH",
        multiple=True,
        help="Put a model of the program on another Hugging Face id or folder. `prm=ID kind=KIND` in quotes says of "
        "which kind a verifier is.",
        shell_complete=complete_models,
    ),
    click.option(
        "--adapter",
        "adapters",
        metavar="NAME=FOLDER|ID",
        multiple=True,
        help="Merge a LoRA adapter in PEFT's format into a model of the program.",
        shell_complete=complete_adapters,
    ),
    click.option(
        "--draft",
        "drafts",
        metavar="[NAME=]DRAFT",
        multiple=True,
        help="What proposes tokens for all models of the program, or for NAME: another model, `ngram`, "
        "`ngram(FILE)`, `early_exit`, `early_exit(FOLDER)`, `eagle(FOLDER)` or `none`. The tokens are the same, and "
        "come faster or not.",
    ),
    *_READING,
)


_PLANNING = (
    click.option(
        "--plan",
        "plan_kind",
        type=click.Choice(["optimized", "naive"]),
        default="optimized",
        show_default=True,
        help="`naive` runs the program as it is written, by no rule.",
    ),
    click.option(
        "--disable-rule",
        "disabled",
        metavar="RULE",
        multiple=True,
        help="Plan without a rule; `explain --verbose` names those that changed the plan.",
        shell_complete=complete_rules,
    ),
    click.option(
        "--exit-head",
        "exit_heads",
        metavar="[NAME=]FOLDER",
        multiple=True,
        help="Exit heads that `qpdsl calibrate` fitted for a model of the program, or for NAME. A program that permits "
        "it, as `within loss(0.02)` does, may leave that model early where its measured loss allows it.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """What `surrounding_options` and `planning_options` say of a program, as the user set them."""

    program: str | None
    settings: tuple[str, ...]
    models: tuple[str, ...]
    adapters: tuple[str, ...]
    drafts: tuple[str, ...]
    allow_read: tuple[str, ...]
    python: tuple[str, ...]
    plan_kind: str
    disabled: tuple[str, ...]
    exit_heads: tuple[str, ...]

    def surroundings(self) -> Surroundings:
        """What the program may use besides its text. Raises UsageError."""
        from qpdsl.sources.surroundings import read_surroundings

        return read_surroundings(self.allow_read, self.python, self.models, self.adapters, self.drafts)


device_option = click.option(
    "--device", default="cpu", show_default=True, callback=_device, help="cpu, cuda or cuda:N."
)

router_option = click.option(
    "--router",
    type=click.Choice(["none", *_POLICIES, *(f"fixed:{arm}" for arm in ("dense", "rows", "union", "exit", "full"))]),
    help="What decides at each step of a constrained `generate` over which ids the head is computed, by what it learns "
    "in the run or always one way; the tokens are the same. And which draws of a `generate … via amortized(…)` try "
    "their exit, by what earlier runs learned; the tokens are those of that state.  [default: a rule; all try it]",
)

shadow_option = click.option(
    "--shadow",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Have the full model draw this share of what an early exit, or a filter's small model, decides, and count how "
    "often it would draw another token. The tokens stay as they are.  [default: 0.02 where `within loss(…)` chose the "
    "exit or the filter, else 0]",
)

within_option = click.option(
    "--within",
    type=click.Choice(["exact", "replayable", "recorded"]),
    help="What a program that does not say so itself permits of models on servers: none of them; those that give "
    "the same samples again; any, whose samples come again only as they were kept.  [default: replayable]",
)

format_option = click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)

statistics_option = click.option(
    "--statistics/--no-statistics",
    default=True,
    envvar="QPDSL_STATISTICS",
    help="Remember how many rows and tokens each operator came to, for later plans; QPDSL_STATISTICS=0 for never.  "
    "[default: yes]",
)


def reading_options(command: Command) -> Command:
    """The options of every command that checks programs."""
    return with_options(_READING, command)


def program_options(command: Command) -> Command:
    """The options of every command that plans one program, which they name."""
    return with_options((*_TARGET, *_PROGRAM), command)


def surrounding_options(command: Command) -> Command:
    """What `program_options` says of a program that another option names."""
    return with_options(_PROGRAM, command)


def planning_options(command: Command) -> Command:
    """The options of every command whose planning the user can set."""
    return with_options(_PLANNING, command)


def with_options(options: tuple[Command, ...], command: Command) -> Command:
    """The command with these options, which its help shows in this order."""
    for option in reversed(options):
        command = option(command)
    return command

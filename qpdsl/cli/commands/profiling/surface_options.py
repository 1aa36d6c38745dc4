"""`qpdsl profile --surface`: the throughput of a program's models by sequences and tokens of a step, estimated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from qpdsl.cli.proposals import complete_programs
from qpdsl.cli.shared_options import FileName, ProgramOptions, planning_options, surrounding_options

Command = Callable[..., Any]

_OPTIONS = (
    click.option(
        "--surface",
        metavar="FILE|NAME",
        type=FileName(),
        help="Measure nothing, and estimate the throughput of each model of a program by sequences side by side and "
        "tokens of a step, with the best split of the memory. It takes the options below that `run` takes too.",
        shell_complete=complete_programs,
    ),
    click.option(
        "--kv-memory",
        metavar="AMOUNT",
        help="With --surface: memory for keys and values of all models, such as 64MiB.  [default: 2GiB]",
    ),
    surrounding_options,
    planning_options,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceOptions(ProgramOptions):
    """What `--surface` takes: what `run` takes of a program and its planning, and the memory."""

    surface: str | None
    kv_memory: str | None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SurfaceOptions:
        """Raises UsageError where one of them is given without `--surface`."""
        from qpdsl.errors import UsageError

        options = cls(**{name: given[name] for name in cls.__dataclass_fields__})
        if options.surface is None:
            for name, flag in (
                ("kv_memory", "--kv-memory"),
                ("program", "--program"),
                ("settings", "--set"),
                ("models", "--model"),
                ("adapters", "--adapter"),
                ("drafts", "--draft"),
                ("allow_read", "--allow-read"),
                ("python", "--python"),
                ("disabled", "--disable-rule"),
                ("exit_heads", "--exit-head"),
            ):
                if getattr(options, name):
                    raise UsageError(f"`{flag}` is for `--surface`: `qpdsl profile --surface PROGRAM {flag} …`")
            if options.plan_kind != "optimized":
                raise UsageError("`--plan` is for `--surface`: `qpdsl profile --surface PROGRAM --plan …`")
        return options


def surface_options(command: Command) -> Command:
    """The options of a command that can show a program's batch surface."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def surface_shown(options: SurfaceOptions, device: str, dtype: str | None, threads: int | None, form: str) -> str:
    """What is printed, as text or JSON. Raises UsageError, QpError and ModelError."""
    import json

    from qpdsl.arguments import bind, parse_settings, with_defaults
    from qpdsl.cli.diagnostics import show
    from qpdsl.errors import UsageError
    from qpdsl.model_location import check_models
    from qpdsl.planner.explain.surface_tables import surface_json, surface_text
    from qpdsl.planning.exit_heads import exit_heads_of
    from qpdsl.planning.planning import Planning, reads_of
    from qpdsl.planning.surface import surface_of
    from qpdsl.planning.target import Target
    from qpdsl.settings import check_memory
    from qpdsl.sources.programs import load_program
    from qpdsl.stage_options import check_options

    check_memory(options.kv_memory)
    planning = Planning.of(options.plan_kind, options.disabled)
    lowered = load_program(options.surface, None, options.program, options.surroundings(), options.settings)
    show(lowered.warnings)
    values = parse_settings(lowered.params, options.settings, lowered.name, lowered.model_params)
    lowered = with_defaults(lowered, values)
    target = Target(device, dtype, threads, exit_heads=tuple(exit_heads_of(options.exit_heads).items()))
    plan = planning.optimized(lowered, reads_of(lowered), target).plan
    check_models(plan.models.values())
    check_options(plan, bind([param for param in plan.params if param.default is not None], {}))
    found = surface_of(plan, target, options.kv_memory)
    if found is None:
        raise UsageError(f"`{options.surface}` calls no model of this machine, so that there is nothing to batch")
    surface, profile = found
    if form == "json":
        return json.dumps(surface_json(lowered.name, surface), ensure_ascii=False, indent=2)
    return surface_text(lowered.name, surface, profile)

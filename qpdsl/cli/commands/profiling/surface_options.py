"""`qpdsl profile --surface`: the throughput of a program's models by sequences and tokens of a step, estimated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from qpdsl.cli.proposals import complete_programs
from qpdsl.cli.shared_options import FileName

Command = Callable[..., Any]

_OPTIONS = (
    click.option(
        "--surface",
        metavar="FILE|NAME",
        type=FileName(),
        help="Measure nothing, and estimate the throughput of each model of a program by sequences side by side and "
        "tokens of a step, with the best split of the memory.",
        shell_complete=complete_programs,
    ),
    click.option(
        "--kv-memory",
        metavar="AMOUNT",
        help="With --surface: memory for keys and values of all models, such as 64MiB.  [default: 2GiB]",
    ),
)


def surface_options(command: Command) -> Command:
    """The options of a command that can show a program's batch surface."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def surface_shown(
    program: str, kv_memory: str | None, device: str, dtype: str | None, threads: int | None, form: str
) -> str:
    """What is printed, as text or JSON. Raises UsageError, QpError and ModelError."""
    import json

    from qpdsl.cli.diagnostics import show
    from qpdsl.errors import UsageError
    from qpdsl.planner.explain.surface_tables import surface_json, surface_text
    from qpdsl.planning.surface import surface_of
    from qpdsl.planning.target import Target
    from qpdsl.settings import check_memory
    from qpdsl.sources.programs import load_program
    from qpdsl.sources.surroundings import read_surroundings

    check_memory(kv_memory)
    lowered = load_program(program, None, None, read_surroundings((), (), (), (), ()))
    show(lowered.warnings)
    found = surface_of(lowered, Target(device, dtype, threads), kv_memory)
    if found is None:
        raise UsageError(f"`{program}` calls no model, so that there is nothing to batch")
    surface, profile = found
    if form == "json":
        return json.dumps(surface_json(lowered.name, surface), ensure_ascii=False, indent=2)
    return surface_text(lowered.name, surface, profile)

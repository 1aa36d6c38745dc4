"""The options that say what programs compute on: device, types, memory, threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from qpdsl.cli.shared_options import device_option
from qpdsl.planner.plan.physical import KV_TYPES
from qpdsl.settings import DTYPES

Command = Callable[..., Any]


def _memory(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    from qpdsl.executor.engine.memory.budget import parse

    try:
        if value is not None:
            parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


_COMPUTING = (
    device_option,
    click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        help="What to compute in.  [default: float32 on a CPU, else the model's own]",
    ),
    click.option(
        "--kv-type",
        type=click.Choice(KV_TYPES),
        help="Keep what the models have read in eight or four bits: more fits, tokens can differ.",
    ),
    click.option(
        "--kv-memory",
        metavar="AMOUNT",
        callback=_memory,
        help="Memory for what the models have read (KV cache), all together: 4GiB, or 50% of the device's.  "
        "[default: a quarter of what is free, 2 GiB at the most; on a GPU what the largest step leaves]",
    ),
    click.option(
        "--deterministic",
        is_flag=True,
        help="The same bits whatever else is in the batch. On a GPU that is slower; on a CPU in float32 it is always "
        "so.",
    ),
    click.option(
        "--compile", is_flag=True, help="On a GPU, compile the layers first: minutes once, then faster steps."
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        help="CPU threads.  [default: one a core, one for small models]",
    ),
)


def computing_options(command: Command) -> Command:
    """The options of every command that loads models and runs programs."""
    for option in reversed(_COMPUTING):
        command = option(command)
    return command

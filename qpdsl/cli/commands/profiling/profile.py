"""`qpdsl profile`: measures the device once, for the planner's estimates, or says what a model takes."""

from __future__ import annotations

import sys
from typing import Any

import click

from qpdsl.cli.commands.profiling.roofline_options import RooflineOptions, roofline_options, roofline_shown
from qpdsl.cli.commands.profiling.surface_options import SurfaceOptions, surface_options, surface_shown
from qpdsl.cli.console import put, say, width_of
from qpdsl.cli.exits import Exit
from qpdsl.cli.proposals import complete_models
from qpdsl.cli.shared_options import device_option, format_option
from qpdsl.settings import DTYPES


@click.command(short_help="Measure the device, for the planner's estimates, or say what a model takes.")
@click.argument("measured", metavar="[MODEL]...", nargs=-1, shell_complete=complete_models)
@device_option
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="What to compute in.  [default: float32 on a CPU, else the model's own]",
)
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: as `run` would]")
@click.option("--tables/--no-tables", default=True, help="Throughput by KV memory and batch too.  [default: yes]")
@click.option("--force", is_flag=True, help="Measure again what is known.")
@roofline_options
@surface_options
@click.option("--json", "as_json", is_flag=True, help="The same as `--format json`.")
@format_option
def command(
    measured: tuple[str, ...],
    device: str,
    dtype: str | None,
    threads: int | None,
    tables: bool,
    force: bool,
    as_json: bool,
    form: str,
    **asked: Any,
) -> Exit:
    """Measure how fast the device copies and multiplies, and what a step of each MODEL takes on it.

    MODELs are built-in names, folders or hub ids; without one the built-in family is measured. The figures are kept in
    the user's cache folder, and `explain --analyze` and `run` go by them. A model takes up to a minute.

    With --roofline or --surface nothing is measured, and estimates are printed instead.

    \b
    qpdsl profile
    qpdsl profile --roofline llama-3-70b --hardware "4x A100-80GB" --weights 140GB
    qpdsl profile --surface beam_search --kv-memory 64MiB --set width=8
    """
    options, surface = RooflineOptions.of(asked), SurfaceOptions.of(asked)
    form = "json" if as_json else form
    _check(measured, options, surface, force=force)
    if options.roofline is not None:
        put(roofline_shown(options, form, width_of(sys.stdout)))
    elif surface.surface is not None:
        put(surface_shown(surface, device, dtype, threads, form))
    else:
        _measure(measured, device, dtype, threads, form, tables=tables, force=force)
    return Exit.OK


def _check(models: tuple[str, ...], options: RooflineOptions, surface: SurfaceOptions, *, force: bool) -> None:
    """Raises UsageError where the options do not go together."""
    from qpdsl.errors import UsageError

    if options.roofline is not None and surface.surface is not None:
        raise UsageError("`--roofline` is about a model and `--surface` about a program; give one of them")
    for flag, given in (("--roofline", options.roofline), ("--surface", surface.surface)):
        if given is not None and (models or force):
            what = f"`{models[0]}` would be measured" if models else "`--force` measures again"
            raise UsageError(f"`{flag}` measures nothing, and {what}; give one of them")


def _measure(
    models: tuple[str, ...],
    device: str,
    dtype: str | None,
    threads: int | None,
    form: str,
    *,
    tables: bool,
    force: bool,
) -> None:
    """Measures the device with these models, and prints its profile."""
    import json

    from qpdsl import zoo
    from qpdsl.model_location import check_models
    from qpdsl.planner.cost.device import device_json
    from qpdsl.planner.explain.measurements import profile_text
    from qpdsl.planning.user_cache import damaged_files

    for note in damaged_files():
        say(f"note: {note}")
    names = models or tuple(model.name for model in zoo.BUILTIN)
    check_models(names)
    # Only now, as it loads torch.
    from qpdsl.planning.profile import measure_models

    def tell(model: str) -> None:
        say(f"measuring {model}")

    profile = measure_models(names, device, dtype, threads, tables=tables, force=force, tell=tell)
    if form == "json":
        put(json.dumps(device_json(profile), ensure_ascii=False, indent=2))
    else:
        put(profile_text(profile))

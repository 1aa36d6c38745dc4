"""`qpdsl profile`: measures the device once, for the planner's estimates."""

from __future__ import annotations

import click

from qpdsl.cli.console import put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.proposals import complete_models
from qpdsl.cli.shared_options import device_option, format_option
from qpdsl.settings import DTYPES


@click.command(short_help="Measure the device, for the planner's estimates.")
@click.argument("models", metavar="[MODEL]...", nargs=-1, shell_complete=complete_models)
@device_option
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="What to compute in.  [default: float32 on a CPU, else the model's own]",
)
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: as `run` would]")
@click.option("--tables/--no-tables", default=True, help="Throughput by KV memory and batch too.  [default: yes]")
@click.option("--force", is_flag=True, help="Measure again what is known.")
@format_option
def command(
    models: tuple[str, ...],
    device: str,
    dtype: str | None,
    threads: int | None,
    tables: bool,
    force: bool,
    form: str,
) -> Exit:
    """Measure how fast the device copies and multiplies, and what a step of each MODEL takes on it.

    MODELs are built-in names, folders or hub ids; without one the built-in family is measured. The figures are kept in
    the user's cache folder, and `explain --analyze` and `run` go by them. A model takes up to a minute.
    """
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
    return Exit.OK

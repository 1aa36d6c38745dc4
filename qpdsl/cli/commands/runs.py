"""`qpdsl runs`: the saved runs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qpdsl.cli.console import put, say, width_of
from qpdsl.cli.exits import Exit
from qpdsl.cli.file_guard import Contents, FileGuard
from qpdsl.cli.given_once import refuse_twice
from qpdsl.cli.proposals import complete_runs
from qpdsl.cli.shared_options import FileName, format_option
from qpdsl.errors import UsageError, unknown
from qpdsl.runs.record_file import (
    ARRAY,
    FOLDER,
    FOLDER_FILES,
    FORMATS,
    LINES,
    PARQUET,
    is_exported_folder,
    record_format,
    text_lines,
    write_folder,
)
from qpdsl.session.setting import STDOUT

if TYPE_CHECKING:
    from qpdsl.runs.store.run_file import RunFile, RunFileError
    from qpdsl.runs.store.run_folder import RunFolder
    from qpdsl.runs.store.run_record import RunInfo

INSPECT = "inspect"
# Forms of `training_forms.py`, which loads more than a command line is to.
FORMS = ("sft", "trl-dpo", "trl-kto", "trl-prm", "trajectories", "verl")
_AGE = re.compile(r"(\d+)([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}


class _Runs(click.Group):
    """Lists the runs where no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            ctx.fail(unknown(args[0], self.commands, "there is no command"))
        name, command, rest = super().resolve_command(ctx, args)
        refuse_twice(ctx, name, command, rest)
        return name, command, rest


@click.group(cls=_Runs)
def command() -> None:
    """Every `qpdsl run --input` is kept: the program, the plan, the values, and what came of every row.

    Runs lie in the folder that QPDSL_RUNS names, else in `qpdsl/runs` of the user's data folder. RUN is an id, the
    beginning or the end of one, `last`, `last-1` for the one before it, a program's name for its newest run, or a file.
    Without a command they are listed.
    """


@command.command("list", short_help="List the runs, the newest last.")
@click.option("--program", metavar="NAME", help="Those of this program only.")
@click.option("--unfinished", is_flag=True, help="Those only that have not finished.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The newest N only.")
@format_option
def list_(program: str | None, unfinished: bool, limit: int | None, form: str) -> Exit:
    """List saved runs: how far each came, its accuracy with a 95% interval, the tokens it sampled.

    A run that was killed is `stopped`; `qpdsl run … --resume` goes on with it.
    """
    from qpdsl.cli.runs.run_tables import info_json, table
    from qpdsl.planner.values.value import dumps
    from qpdsl.runs.store.run_folder import RunFolder

    folder = RunFolder()
    infos = [info for info in folder.infos(_say_damaged) if program in (None, info.record.program)]
    infos = [info for info in infos if not unfinished or info.status != "finished"]
    infos = infos[-limit:] if limit else infos
    if form == "json":
        put(dumps([info_json(info) for info in infos]))
    elif infos:
        put(table(infos, width_of(sys.stdout)))
    else:
        say(f"there are no such runs in `{folder.path}`; every `qpdsl run --input` makes one")
    return Exit.OK


@command.command(short_help="Show all that is known of a run.")
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option("--rows", is_flag=True, help="Show its rows too: answers and grades.")
@click.option("--source", is_flag=True, help="Show the text of its program only.")
@format_option
def show(run: str, rows: bool, source: bool, form: str) -> Exit:
    """Show a run: its program and values, what it came to, its plan, and what happened to it."""
    from qpdsl.cli.runs.run_tables import facts, rows_table, run_json
    from qpdsl.planner.values.value import dumps
    from qpdsl.runs.store.run_file import RunFile
    from qpdsl.runs.store.run_folder import RunFolder

    with RunFile.reading(RunFolder().find(run)) as kept:
        if source:
            put(kept.record.source.rstrip("\n"))
        elif form == "json":
            put(dumps(run_json(kept)))
        else:
            put(facts(kept))
            if rows:
                _tell_of_damaged(kept)
                put("\n" + rows_table(list(kept.rows()), width_of(sys.stdout)))
    return Exit.OK


@command.command("export", short_help="Write a run as a file for other programs, or as data to train on.")
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@click.option(
    "--as",
    "shape",
    type=click.Choice([INSPECT, *FORMS]),
    help="Write a log that inspect_ai's viewer opens (JSON), or data to train on. The latter take a run with "
    "--save-trajectories.",
)
@click.option("--per-row", type=click.IntRange(min=1), metavar="N", help="At most N records of a row to train on.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Format of the export; `hf` is a folder that the library `datasets` loads.  [default: that of the ending of "
    "--output, else jsonl]",
)
@click.option(
    "--output",
    metavar="FILE",
    type=FileName(STDOUT),
    help="Where it goes, whole or not at all.  [default: stdout]",
)
@click.option("--overwrite", is_flag=True, help="Replace an export in --output.")
def export(
    run: str, shape: str | None, per_row: int | None, form: str | None, output: str | None, overwrite: bool
) -> Exit:
    """Write a run for other programs: a line a row, or with `json` one object with all that is known.

    With --as it is written in a form of theirs: `sft`, `trl-dpo`, `trl-kto` and `trl-prm` have the columns of TRL's
    trainers, `verl` those of verl, and `trajectories` every token with its log-probability.
    """
    from qpdsl.cli.runs.run_tables import begins_export, exported
    from qpdsl.output import folder_written
    from qpdsl.runs.inspect_log import inspect_log
    from qpdsl.runs.store.run_file import RunFile
    from qpdsl.runs.store.run_folder import RunFolder
    from qpdsl.runs.training_forms import training_records

    if overwrite and output is None:
        raise UsageError("`--overwrite` needs `--output`")
    if per_row is not None and shape not in FORMS:
        raise UsageError("`--per-row` is for data to train on", f"`--as` takes {', '.join(FORMS)}")
    made = record_format(output or "", form or (ARRAY if shape == INSPECT else None))
    if shape == INSPECT and made != ARRAY:
        raise UsageError(f"`--as {shape}` writes JSON, not {made}", "name a `.json` file, and leave out `--format`")
    if made in (PARQUET, FOLDER) and output is None:
        raise UsageError(f"`--format {made}` needs `--output`: such a file is no text")
    runs = RunFolder()
    path = runs.find(run)
    guard = FileGuard()
    guard.reads(path, "the run")
    guard.keeps(runs.path, "the folder of the saved runs")
    contents = Contents("an exported run", is_exported_folder if made == FOLDER else begins_export)
    target, folder = None, None
    if output is not None and made == FOLDER:
        folder = guard.writes_folder(Path(output), "`--output`", FOLDER_FILES, contents, overwrite=overwrite)
    elif output is not None:
        target = guard.writes(Path(output), "`--output`", contents, overwrite=overwrite)
    with RunFile.reading(path) as kept:
        _tell_of_damaged(kept)
        if shape in FORMS:
            records = training_records(kept, shape, per_row)
        else:
            # What `json` has is one object, which is a line.
            records = exported(kept, made) if shape is None else [inspect_log(kept)]
            made = LINES if made == ARRAY else made
        if folder is not None:
            with folder_written(folder) as part:
                write_folder(records, part)
        elif target is not None:
            target.write_records(records, made, nested=shape in FORMS)
        else:
            for line in text_lines(records, made):
                put(line)
    return Exit.OK


@command.command(short_help="Remove runs.")
@click.argument("runs", metavar="[RUN]…", nargs=-1, shell_complete=complete_runs)
@click.option("--older-than", metavar="AGE", help="All that ended so long ago: `12h`, `30d`, `8w`.")
@click.option("--unfinished", is_flag=True, help="All that have not finished and that nobody writes.")
@click.option("--yes", is_flag=True, help="Ask nothing.")
def rm(runs: Sequence[str], older_than: str | None, unfinished: bool, yes: bool) -> Exit:
    """Remove runs, once that is confirmed: those named, or with options all of which every option holds.

    Damaged ones can be named too. A run that goes on now is never removed.
    """
    from qpdsl.runs.store.run_folder import RunFolder

    folder = RunFolder()
    filtered = older_than is not None or unfinished
    if bool(runs) == filtered:
        raise UsageError("name runs, or say which by `--older-than` and `--unfinished`")
    before = None if older_than is None else time.time() - _seconds(older_than)
    chosen = _filtered(folder, before, unfinished) if filtered else [_named(folder, name) for name in runs]
    chosen = list(dict.fromkeys(chosen))
    if not chosen:
        say(f"there are no such runs in `{folder.path}`")
        return Exit.OK
    _confirm(chosen, yes)
    for id in chosen:
        folder.remove(id)
    say(f"removed {len(chosen)} run{'s' * (len(chosen) > 1)}")
    return Exit.OK


def _say_damaged(error: RunFileError) -> None:
    say(f"warning: {error.message}")


def _named(folder: RunFolder, name: str) -> str:
    path = folder.find(name)
    if path.parent.resolve() != folder.path.resolve():
        raise UsageError(f"`{path}` is not in `{folder.path}`, and only runs there are removed")
    return path.stem


def _tell_of_damaged(kept: RunFile) -> None:
    damaged = [str(number + 1) for number, row in kept.checked_rows() if row is None]
    if damaged:
        say(f"warning: damaged, and left out here: row{'s' * (len(damaged) > 1)} {', '.join(damaged)}")


def _filtered(folder: RunFolder, before: float | None, unfinished: bool) -> list[str]:
    def is_meant(info: RunInfo) -> bool:
        old = before is None or (info.ended or info.record.started) < before
        return old and not info.writing and not (unfinished and info.status == "finished")

    return [info.id for info in folder.infos(_say_damaged) if is_meant(info)]


def _seconds(age: str) -> float:
    match = _AGE.fullmatch(age)
    if match is None:
        raise UsageError(f"`--older-than` takes a number of hours, days or weeks such as `30d`, not `{age}`")
    return float(match[1]) * _HOURS[match[2]] * 3600


def _confirm(chosen: Sequence[str], yes: bool) -> None:
    """Raises UsageError where the user does not say yes."""
    if yes:
        return
    noun = f"{len(chosen)} run{'s' * (len(chosen) > 1)}"
    if not sys.stdin.isatty():
        raise UsageError(f"{noun} would be removed, and nobody can be asked", "`--yes` removes what is named")
    for id in chosen:
        say(f"  {id}")
    say(f"remove {noun} for good? [y/N]", end=" ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing is removed")

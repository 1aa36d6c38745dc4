"""`qpdsl calibrate`: fits exit heads to a model, for `via amortized`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from qpdsl.cli.console import is_terminal, put, say
from qpdsl.cli.exits import Exit
from qpdsl.cli.file_guard import Contents, FileGuard
from qpdsl.cli.proposals import complete_models
from qpdsl.cli.shared_options import FileName, format_option, setting_options
from qpdsl.session.settings import SessionSettings

if TYPE_CHECKING:
    from qpdsl.exit_heads.exit_record import ExitFigures, ExitRecord

    _ParamType = click.ParamType[tuple[int, ...]]
else:
    # Earlier versions of click do not have it generic.
    _ParamType = click.ParamType

# Seconds between two lines of progress where these are no terminal's.
_SELDOM = 15.0


class _Layers(_ParamType):
    """Numbers of layers, parted by commas."""

    name = "layers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        words = str(value).split(",")
        if not all(word.strip().isdecimal() for word in words):
            self.fail(f"`{value}` is no list of numbers such as `6,12,18`", param, ctx)
        return tuple(int(word) for word in words)


@click.command()
@click.argument("model", metavar="MODEL", shell_complete=complete_models)
@click.option(
    "--text",
    "text",
    metavar="FILE",
    multiple=True,
    required=True,
    type=FileName(dash="texts are read from files"),
    help="What to fit the heads to: plain text, or JSON lines with `--field`. May be given several times.",
)
@click.option(
    "--field", metavar="NAME", help="The field of each line that is the text, where the files are JSON lines."
)
@click.option(
    "--output",
    metavar="FOLDER",
    required=True,
    type=FileName(dash="it names a folder"),
    help="Where the heads go, and how they agreed.",
)
@click.option(
    "--layers",
    metavar="N,N,…",
    type=_Layers(),
    default=None,
    help="After how many layers exits are tried.  [default: a half, two thirds and five sixths]",
)
@click.option(
    "--tokens", type=click.IntRange(min=1), default=20_000, show_default=True, help="How many to read at most."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="End fitting after so many; what comes out then depends on the clock.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Decides what is fitted to and what measures.")
@setting_options(SessionSettings, "calibrate")
@click.option("--overwrite", is_flag=True, help="Replace exit heads that are in the folder.")
@format_option
def command(
    model: str,
    text: tuple[str, ...],
    field: str | None,
    output: str,
    layers: tuple[int, ...] | None,
    tokens: int,
    seconds: float | None,
    seed: int,
    threads: int | None,
    device: str,
    dtype: str | None,
    overwrite: bool,
    form: str,
) -> Exit:
    """Fit an exit head to each of some layers of MODEL, on text of the kind that it is to write.

    A draw that `via amortized(MARGIN, head="FOLDER")` trusts leaves the model after such a layer. Most of the text is
    fitted to, and the rest says how often the exit's token is the full model's, by margin. For a model of 135 million
    parameters this takes a few minutes on a CPU. MODEL is a built-in name, a folder, a GGUF file or a hub id.
    """
    import json

    from qpdsl.cli.signals import interruptible
    from qpdsl.exit_heads.texts import read_texts
    from qpdsl.model_location import check_models
    from qpdsl.output import folder_written

    settings = SessionSettings(device=device, dtype=dtype, threads=threads)
    check_models((model,))
    target = _guarded(model, text, output, overwrite=overwrite)
    texts = [piece for name in text for piece in read_texts(Path(name), field)]
    with interruptible():
        # Only now, as it loads torch.
        import torch

        from qpdsl.exit_heads.exit_head import save_heads
        from qpdsl.exit_heads.head_fitting import fit_heads

        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        with _Progress() as progress:
            record, heads = fit_heads(
                model,
                texts,
                layers or (),
                tokens=tokens,
                seed=seed,
                seconds=seconds,
                device=settings.device,
                dtype=settings.dtype,
                tell=progress.tell,
            )
        with folder_written(target) as folder:
            save_heads(folder, record, heads)
    if form == "json":
        put(json.dumps(record.json(), ensure_ascii=False, indent=2))
    else:
        put("\n".join(_lines(record)))
        say(f'`{output}` has the heads: `via amortized(MARGIN, head="{output}")` in a program of this folder')
    return Exit.OK


def _guarded(model: str, texts: tuple[str, ...], output: str, *, overwrite: bool) -> Path:
    """The folder to write, where that loses nothing. Raises UsageError."""
    from qpdsl.cli.runs.run_files import name_models
    from qpdsl.exit_heads.exit_record import RECORD, WEIGHTS

    guard = FileGuard()
    for name in texts:
        guard.reads(Path(name), "a text")
    name_models(guard, {model: model})
    contents = Contents("exit heads", _begins_record)
    return guard.writes_folder(Path(output), "`--output`", (RECORD, WEIGHTS), contents, overwrite=overwrite)


def _begins_record(file: BinaryIO) -> bool:
    from qpdsl.exit_heads.exit_record import KIND

    return KIND.encode() in file.read(64)


class _Progress:
    """What is being done, on stderr: one line that changes on a terminal, lines elsewhere."""

    def __init__(self) -> None:
        self._terminal = is_terminal(sys.stderr)
        self._what, self._shown, self._width = "", 0.0, 0

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._terminal and self._width:
            say(" " * self._width, end="\r")

    def tell(self, what: str, share: float) -> None:
        now = time.monotonic()
        if self._terminal:
            line = f"{what} {share:.0%}"
            say(line.ljust(self._width), end="\r")
            self._width = len(line)
        elif what != self._what or now - self._shown >= _SELDOM:
            say(what if what != self._what else f"{what} {share:.0%}")
            self._shown = now
        self._what = what


def _lines(record: ExitRecord) -> list[str]:
    """The record as a table: of each layer the smallest margin that keeps to the usual agreement."""
    from qpdsl.exit_heads.exit_record import USUAL

    draws = record.heads[0].draws
    lines = [
        f"{record.model}: {record.layers} layers, {record.width} wide, {record.vocabulary:,} ids; "
        f"{record.tokens:,} tokens read, agreement measured at {draws:,} of them",
        "",
        "layer  KL before   after  margin   exits   agree  sampled   saves  reranked",
    ]
    lines += [_row(head) for head in record.heads]
    return [
        *lines,
        "",
        f"margin: the smallest at which {USUAL:.0%} of exits have the full model's likeliest token.",
        "sampled: the same of tokens drawn at temperature 1, with the same noise.",
        "saves: of the weights that a decode step of one row reads, exit head and draws that go on counted.",
        "reranked: the same with `rerank=`, where draws that go on do not read the model's head again.",
    ]


def _row(head: ExitFigures) -> str:
    before, after = head.divergence
    start = f"{head.layer:>5}  {before:>9.3f}  {after:>6.3f}  "
    point = head.smallest_margin()
    if point is None:
        return start + f"{'none':>6}"
    saved, reranked = 1 - head.cost(point), 1 - head.cost(point, rerank=True)
    shares = f"{point.exits:>6.1%}  {point.greedy:>6.1%}  {point.sampled:>7.1%}  {saved:>6.1%}  {reranked:>8.1%}"
    return f"{start}{point.margin:>6g}  {shares}"

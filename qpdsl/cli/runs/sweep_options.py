"""The options of `qpdsl eval`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from qpdsl.errors import UsageError
from qpdsl.runs.record_file import ENDINGS, OTHER_TEXTS, UNWRITTEN
from qpdsl.session.setting import STDOUT, FilePath, OneOf, Whole, setting
from qpdsl.session.settings import BUDGET, GRADING, OUTPUT, RANDOMNESS, ROWS, Settings

_ENDINGS = {".txt": "text", ".md": "markdown", ".csv": "csv", ".json": "json"}
# Endings of formats that no table is written in. Under any other name a file has the format of `--format`.
_OTHERS = {*ENDINGS, *UNWRITTEN, *OTHER_TEXTS} - {*_ENDINGS}
_own = partial(setting, on="eval")
_output = partial(_own, heading=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Settings):
    """What `qpdsl eval` takes besides the settings of all commands."""

    targets: tuple[str, ...] = ()
    seeds: int = _own(1, usual=True, heading=RANDOMNESS, kind=Whole(1), metavar="N", help="Run with seeds 0 to N-1.")
    ways: bool = _own(
        False,
        heading=BUDGET,
        help="Run each strategy of a program that leaves something open, whatever its budget.",
    )
    form: str = _output(
        "text",
        usual=True,
        kind=OneOf("text", "markdown", "json", "csv"),
        option="--format",
        help="Format of the table; `text` has a plot under it.",
    )
    output: str | None = _output(
        usual=True,
        kind=FilePath(STDOUT),
        metavar="FILE",
        shown="stdout",
        help="Write the table to FILE, in the format that .md, .csv, .json or .txt says.",
    )
    plot: str | None = _output(
        usual=True,
        kind=FilePath("a plot has a file of its own"),
        metavar="FILE",
        help="Plot accuracy against sampled tokens, with intervals and the Pareto front, as SVG.",
    )
    log: tuple[str, ...] = _output(
        (),
        metavar="wandb:PROJECT|mlflow:URI",
        help="Log the cells to an experiment tracker too.",
    )
    baseline: str | None = _own(
        usual=True,
        heading=GRADING,
        metavar="CELL",
        shown="the most accurate one",
        help="Compare with this cell, such as `best_of_n(n=16)`.",
    )
    fresh: bool = _own(False, heading=ROWS, help="Start over, without the finished rows of earlier sweeps.")

    def check(self) -> None:
        """Raises UsageError where the options do not go together."""
        if self.input is None:
            raise UsageError("a sweep needs `--input`, the rows that every cell runs")
        if self.input == "-":
            raise UsageError("`--input -` can be read once, and a sweep reads its rows for every cell", "give a file")
        if self.overwrite and self.output is None and self.plot is None and self.trace is None:
            raise UsageError("`--overwrite` needs `--output`, `--plot` or `--trace`")
        super().check()

    @property
    def file_form(self) -> str:
        """The format of the file of `--output`: that of the ending of its name, else `--format`.

        Raises UsageError where the ending is of another format than `--format`, or of one that no table is written in.
        """
        ending = Path(self.output or "").suffix.lower()
        if ending in _OTHERS:
            raise UsageError(
                f"`{self.output}`: no table is written as `{ending}`", f"endings are {', '.join(_ENDINGS)}"
            )
        form = _ENDINGS.get(ending, self.form)
        if self.form not in ("text", form):
            raise UsageError(
                f"`--format {self.form}` is not the format of `{self.output}`",
                "give another name, or leave out `--format`",
            )
        return form

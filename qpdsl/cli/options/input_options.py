"""`--input` and what is said of it: which fields mean what, and which rows are taken."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from qpdsl.cli.proposals import complete_data
from qpdsl.cli.shared_options import FileName, with_options
from qpdsl.errors import UsageError
from qpdsl.inputs.known.known_sets import FORMS
from qpdsl.inputs.read_options import ReadOptions

if TYPE_CHECKING:
    from qpdsl.inputs.input_row import InputData
    from qpdsl.planner.plan.physical import PhysicalPlan
    from qpdsl.planner.values.value import Value

Command = Callable[..., Any]
# The options, by the names of the fields that hold them.
_NAMES = {
    "dataset": "--dataset",
    "maps": "--map",
    "id_field": "--id",
    "split": "--split",
    "where": "--where",
    "shuffle": "--shuffle",
    "skip": "--skip",
    "limit": "--limit",
    "spread": "--spread",
}


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """The options about data as the user set them; `_OPTIONS` says what each means."""

    input: str | None
    dataset: str | None
    maps: tuple[str, ...]
    id_field: str | None
    split: str | None
    where: str | None
    shuffle: int | None
    skip: int | None
    limit: int | None
    spread: str | None

    def check_input(self) -> None:
        """Raises UsageError where the options do not go together."""
        if self.input is None:
            for name, option in _NAMES.items():
                if getattr(self, name) not in (None, ()):
                    raise UsageError(f"`{option}` needs `--input`")
        _ = self.read_options

    @property
    def read_options(self) -> ReadOptions:
        """How the data is read. Raises UsageError where the options do not go together."""
        return ReadOptions(
            dataset=self.dataset,
            maps=self.maps,
            id=self.id_field,
            split=self.split,
            where=self.where,
            shuffle=self.shuffle,
            skip=self.skip,
            limit=self.limit,
            spread=self.spread,
        )


def read_input(
    options: InputOptions, plan: PhysicalPlan, values: Mapping[str, Value], used: Collection[str] | None = ()
) -> InputData:
    """The rows of `--input`, of which there must be one; `values` are for parameters that a row does not set.

    `used` are fields that something else reads: see `read_rows`. Raises DataError and UsageError.
    """
    from qpdsl.inputs.data_source import data_source
    from qpdsl.inputs.rows import read_rows

    assert options.input is not None
    return read_rows(data_source(options.input), plan, values, options.read_options, used)


_OPTIONS = (
    click.option(
        "--input",
        metavar="DATA",
        type=FileName(),
        help="Run every row of a file: JSON lines, a JSON array, CSV, TSV or Parquet; of a folder of the library "
        "`datasets`; or of hf:ORG/NAME[:CONFIG][@REVISION] on the Hugging Face hub. Fields are the program's "
        "parameters, and go before --set. `id` names a row; `answer`, if it is no parameter, is what accuracy is "
        "measured against. `counting-500` means the problems shipped, `-` standard input.",
        shell_complete=complete_data,
    ),
    click.option(
        "--dataset",
        type=click.Choice(list(FORMS)),
        help="Read the fields of --input as this benchmark publishes them, and grade answers as it does.",
    ),
    click.option(
        "--map",
        "maps",
        metavar="NAME=SOURCE",
        multiple=True,
        help="What a parameter, `answer`, `id` or a field for --where is made of: a field, `FIELD:regex:PATTERN`, "
        "`FIELD:boxed`, `FIELD:number`, `FIELD:json`, or a text with {FIELD} in it.",
    ),
    click.option("--id", "id_field", metavar="FIELD", help="The field that names a row.  [default: id]"),
    click.option("--split", metavar="NAME", help="The split of a folder or of a data set on the hub.  [default: test]"),
    click.option(
        "--where",
        metavar="CONDITION",
        help="Take rows whose fields fulfil it: \"level >= 3 and subject == 'Algebra'\".",
    ),
    click.option("--shuffle", type=int, metavar="SEED", help="Take rows in an order that depends on SEED alone."),
    click.option("--skip", type=click.IntRange(min=0), metavar="N", help="Leave out the first N rows."),
    click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Take N rows at most."),
    click.option(
        "--spread", metavar="FIELD", help="With --limit: take as many rows of each value of FIELD as of others."
    ),
)


def input_options(command: Command) -> Command:
    """The options of every command that runs the rows of some data."""
    return with_options(_OPTIONS, command)

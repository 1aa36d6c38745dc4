"""One row of the input, all rows of some data, and rows by the value of a field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qpdsl.errors import UsageError, shorten, unknown
from qpdsl.planner.values.value import Value

# One right answer: a text, a number's text, or a record.
RightAnswer = str | dict[str, Any]
# The right answer, or all of several that are right.
Reference = RightAnswer | tuple[RightAnswer, ...]


@dataclass(frozen=True, slots=True)
class NumberedRow:
    """A row to run, with its number in the input. `run` is the place of its run among those that run together."""

    number: int
    row: InputRow
    run: int = 0


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row to run. `reference` is the right answer, where the data has one.

    `fields` are the other fields of its record, which are no arguments: a level, a subject, tests. Graders, `--where`
    and tables by group read them. Rows of a lower `priority` go first. `own` are the arguments that tell it from other
    rows; none where that is not known.
    """

    id: str
    arguments: Mapping[str, Value]
    reference: Reference | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    own: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class InputData:
    """The rows that were chosen, in order, and a digest of the bytes that they were read from.

    `notes` say how the data was understood, and what of it and of the settings is not used, a line each. `name` is what
    messages call the data. `grader` is the name of the grader that a known data set brings. `overruled` are settings
    without effect, as every row has a value of its own for that parameter.
    """

    rows: tuple[InputRow, ...]
    digest: str
    notes: tuple[str, ...] = ()
    name: str = ""
    grader: str | None = None
    overruled: frozenset[str] = frozenset()


def with_priorities(data: InputData, field: str | None) -> InputData:
    """The rows with the priorities that stand in a field; themselves without one.

    Raises UsageError where a row has no whole number there.
    """
    if field is None:
        return data
    rows: list[InputRow] = []
    for row in data.rows:
        number = {**row.arguments, **row.fields}.get(field)
        if not isinstance(number, int) or isinstance(number, bool):
            raise UsageError(f"`--priority`: row `{shorten(row.id)}` has no whole number in `{shorten(field)}`")
        rows.append(replace(row, priority=number))
    return replace(data, rows=tuple(rows))


def groups_of(rows: Sequence[InputRow], field: str | None) -> list[str] | None:
    """For each row the field and its value, such as `level 3`; None without a field.

    Raises UsageError where no row has the field.
    """
    if field is None:
        return None
    values = [{**row.arguments, **row.fields}.get(field) for row in rows]
    if all(value is None for value in values):
        names = dict.fromkeys(name for row in rows for name in (*row.fields, *row.arguments))
        raise UsageError(f"`--by`: {unknown(field, list(names), 'the rows have no field')}")
    return [f"{field} {'none' if value is None else value}" for value in values]

"""Rows by the value of one of their fields."""

from __future__ import annotations

from collections.abc import Sequence

from qpdsl.errors import UsageError, unknown
from qpdsl.inputs.input_row import InputRow


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

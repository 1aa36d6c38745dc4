"""The right answers of a row as texts, whatever form its reference has."""

from __future__ import annotations

from qpdsl.inputs.input_row import InputRow, RightAnswer
from qpdsl.planner.values.json_values import shown


def right_answers(row: InputRow) -> tuple[RightAnswer, ...]:
    """All answers of which each is right, none where the row has no reference."""
    if row.reference is None:
        return ()
    return row.reference if isinstance(row.reference, tuple) else (row.reference,)


def right_texts(row: InputRow) -> tuple[str, ...]:
    """The same as texts; a record as JSON."""
    return tuple(answer if isinstance(answer, str) else shown(answer) for answer in right_answers(row))

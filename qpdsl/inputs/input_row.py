"""One row of a data set: what a program is run with, and what its answer is held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qpdsl.planner.values.value import Value

# One right answer: a text, a number's text, or a record.
RightAnswer = str | dict[str, Any]
# The right answer, or all of several that are right.
Reference = RightAnswer | tuple[RightAnswer, ...]


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row to run. `reference` is the right answer, where the data has one.

    `fields` are the other fields of its record, which are no arguments: a level, a subject, tests. Graders, `--where`
    and tables by group read them.
    """

    id: str
    arguments: Mapping[str, Value]
    reference: Reference | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


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

"""Equal numbers: the last number that an answer says is that of the reference."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from qpdsl.inputs.input_row import InputRow
from qpdsl.measures.grader import Grade
from qpdsl.measures.graders.right_answers import right_texts
from qpdsl.planner.values.json_values import shown

# A number as texts have it: with commas between thousands, or without any. A minus after a digit or letter is none.
_NUMBER = re.compile(
    r"(?<![\w.])[-+−]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\d)|(?<![\w.])[-+−]?\.\d+"
)
_SIGNS = str.maketrans({",": None, "$": None, "−": "-"})


@dataclass(frozen=True)
class NumberAnswer:
    """`tolerance` is the largest share of the reference by which an answer may differ; 0 for equal numbers.

    Units, percent signs, currency and the text around the last number do not count.
    """

    tolerance: float = 0.0
    version = "1"

    @property
    def name(self) -> str:
        return f"number({self.tolerance:g})" if self.tolerance else "number"

    def applies(self, row: InputRow) -> bool:
        return any(last_number(right) is not None for right in right_texts(row))

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        given = None if answer is None else last_number(shown(answer))
        if given is None:
            return Grade(False, note="the answer has no number")
        return Grade(any(self._same(given, right) for right in map(last_number, right_texts(row)) if right is not None))

    def _same(self, given: Decimal, right: Decimal) -> bool:
        return abs(given - right) <= abs(right) * Decimal(str(self.tolerance))


def last_number(text: str) -> Decimal | None:
    """The last number in a text; None where there is none."""
    found = _NUMBER.findall(text)
    try:
        return Decimal(found[-1].translate(_SIGNS)) if found else None
    except InvalidOperation:
        return None

"""Equal numbers: the last number that an answer says is that of the reference."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from qpdsl.executor.runtime.operators.numbers import ARITHMETIC, last_number
from qpdsl.planner.values.value import shown
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.graders.grader import Grade, right_texts


@dataclass(frozen=True)
class NumberAnswer:
    """`tolerance` is the largest share of the reference by which an answer may differ; 0 for equal numbers.

    Units, percent signs, currency and the text around the last number do not count. A fraction is one number.
    """

    tolerance: float = 0.0
    version = "4"

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
        if given == right or not self.tolerance:
            return given == right
        apart = ARITHMETIC.subtract(given, right).copy_abs()
        return apart.is_finite() and apart <= ARITHMETIC.multiply(right.copy_abs(), Decimal(str(self.tolerance)))

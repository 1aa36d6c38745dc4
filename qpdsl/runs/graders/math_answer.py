"""Equal mathematics, as math-verify sees it: `1/2`, `0.5` and `\\frac{1}{2}` are one answer."""

from __future__ import annotations

import importlib.util
from collections import deque
from typing import Any

from qpdsl.errors import UsageError
from qpdsl.executor.runtime.instance.mathematics import Mathematics, NoMathematics
from qpdsl.executor.runtime.operators.answers import boxed
from qpdsl.planner.values.value import shown
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.graders.grader import Grade, right_texts, same_answer


class MathAnswer:
    """Compares what stands in the last `\\boxed{…}` of the answer, or all of it, with the reference.

    Raises UsageError where math-verify is not installed. An answer that takes longer than two seconds is wrong.
    """

    name = "math"
    version = "1"

    def __init__(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise UsageError("the grader `math` needs math-verify", "pip install math-verify")
        self._mathematics = Mathematics()

    def __reduce__(self) -> tuple[type[MathAnswer], tuple[()]]:
        return MathAnswer, ()

    def applies(self, row: InputRow) -> bool:
        return row.reference is not None

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        if answer is None:
            return Grade(False)
        given = last_box(shown(answer))
        for right in map(last_box, right_texts(row)):
            try:
                if same_answer(given, right) or await self._mathematics.same(right, given):
                    return Grade(True)
            except NoMathematics as error:
                raise UsageError(str(error).replace("`equal=math`", "the grader `math`")) from error
        return Grade(False)


def last_box(text: str) -> str:
    """What stands in the last `\\boxed{…}`, else the whole text without dollar signs around it."""
    last = next(iter(deque(boxed(text), maxlen=1)), None)
    return (text if last is None else last).strip().strip("$").strip()

"""The letter of a choice: A, (b), "The answer is C.", or the text of the option itself."""

from __future__ import annotations

import re
from typing import Any

from qpdsl.inputs.input_row import InputRow
from qpdsl.measures.grader import Grade
from qpdsl.measures.graders.right_answers import right_texts
from qpdsl.measures.graders.text_answer import normalized
from qpdsl.planner.values.json_values import shown

_ALONE = re.compile(r"[\s*(\[]*([A-Za-z])[\s*)\].:]*")
_SAID = re.compile(r"(?i:answer|choice|option)(?i:\s+is)?[\s:*]*[(\[]?([A-Z])\b(?![a-z'’])")
_IN_BRACKETS = re.compile(r"[(\[]([A-Z])[)\]]")
_FIRST = re.compile(r"\s*[(\[*]*([A-Z])[)\].:]\s")


class ChoiceAnswer:
    """Compares letters where the reference is one, else normalized texts."""

    name = "choice"
    version = "1"

    def applies(self, row: InputRow) -> bool:
        return row.reference is not None

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        if answer is None:
            return Grade(False)
        text = shown(answer)
        letter = chosen_letter(text)
        for right in right_texts(row):
            wanted = _ALONE.fullmatch(right)
            if letter == wanted[1].upper() if wanted else normalized(text) == normalized(right):
                return Grade(True)
        return Grade(False, note=None if letter else "the answer names no letter")


def chosen_letter(text: str) -> str | None:
    """The letter that an answer comes to; None where it names none."""
    if (alone := _ALONE.fullmatch(text)) is not None:
        return alone[1].upper()
    for pattern in (_SAID, _IN_BRACKETS):
        if found := pattern.findall(text):
            return str(found[-1])
    first = _FIRST.match(text)
    return None if first is None else first[1]

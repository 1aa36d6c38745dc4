"""Equal text, or text that has the right one in it, once case, punctuation, articles and spaces are left out."""

from __future__ import annotations

import re
import string
from typing import Any

from qpdsl.planner.values.value import shown
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.graders.grader import Grade, right_texts

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class TextAnswer:
    """The exact match of SQuAD (Rajpurkar et al., 2016, section 6): normalized texts are equal."""

    name = "text"
    version = "2"

    def applies(self, row: InputRow) -> bool:
        return row.reference is not None

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        if answer is None:
            return Grade(False)
        given = normalized(shown(answer))
        return Grade(any(given == normalized(right) for right in right_texts(row)))


class ContainedAnswer(TextAnswer):
    """Whether the words of a right answer stand in the answer, one after another, once both are normalized."""

    name = "contains"
    version = "1"

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        if answer is None:
            return Grade(False)
        given = f" {normalized(shown(answer))} "
        return Grade(any(f" {right} " in given for right in map(normalized, right_texts(row)) if right))


def normalized(text: str) -> str:
    """A text in small letters without punctuation, articles and superfluous spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())

"""Problems whose answer is a number or a formula: GSM8K, MATH, AIME, and the counting problems that ship."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from qpdsl.inputs.known.dataset_form import DatasetForm
from qpdsl.inputs.mapping.field_source import Computed, Field, FieldSource, FirstOf, last_box, last_number

_MARK = "####"
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")


def _fields(*names: str) -> FieldSource:
    return FirstOf(tuple(map(Field, names))) if len(names) > 1 else Field(names[0])


def _behind_mark(text: str) -> str:
    """GSM8K ends a solution with `#### 1,450`; an answer without the mark is the answer itself."""
    answer = text.rpartition(_MARK)[2].strip()
    if not answer:
        raise ValueError(f"nothing stands behind `{_MARK}`")
    return _THOUSANDS.sub("", answer)


def _level(text: str) -> int | float | None:
    """`Level 5` is 5; of some problems of MATH the level is not known, `Level ?`."""
    return last_number(text) if any(char.isdigit() for char in text) else None


def _has_mark(record: Mapping[str, Any]) -> bool:
    return isinstance(record["answer"], str) and _MARK in record["answer"]


def _has_box(record: Mapping[str, Any]) -> bool:
    return isinstance(record["solution"], str) and "\\boxed" in record["solution"]


GSM8K = DatasetForm(
    "gsm8k",
    "GSM8K: word problems of grade school, with a whole number as the answer",
    _fields("question", "problem"),
    {"answer": Computed(Field("answer"), _behind_mark, f"behind `{_MARK}`")},
    "number",
    (frozenset({"question", "answer"}), frozenset({"problem", "answer"})),
    "openai/gsm8k, grade-school-math",
    _has_mark,
)

_MATH_SOURCES: Mapping[str, FieldSource] = {
    "answer": FirstOf((Field("answer"), Computed(Field("solution"), last_box, "the last box"))),
    "level": Computed(Field("level"), _level, "the number"),
    "subject": _fields("subject", "type"),
}

MATH = DatasetForm(
    "math",
    "MATH: problems of competitions, with a formula as the answer, in levels 1 to 5",
    Field("problem"),
    {**_MATH_SOURCES, "id": _fields("unique_id", "id")},
    "math",
    (frozenset({"problem", "solution", "level", "type"}),),
    "hendrycks/math, EleutherAI/hendrycks_math",
    _has_box,
)

MATH500 = DatasetForm(
    "math500",
    "MATH-500: the 500 problems of MATH's test set that PRM800K held out",
    Field("problem"),
    {**_MATH_SOURCES, "id": _fields("unique_id", "id")},
    "math",
    (frozenset({"problem", "solution", "answer", "subject", "level", "unique_id"}),),
    "HuggingFaceH4/MATH-500, openai/prm800k",
)

AIME = DatasetForm(
    "aime",
    "AIME: problems of the American Invitational Mathematics Examination, with an answer from 0 to 999",
    _fields("problem", "Problem", "question", "Question"),
    {
        "answer": FirstOf(tuple(Computed(Field(name), last_number, "the number") for name in ("answer", "Answer"))),
        "id": _fields("id", "ID", "problem_idx"),
    },
    "number",
    (
        frozenset({"ID", "Problem", "Answer"}),
        frozenset({"ID", "Question", "Answer"}),
        frozenset({"problem_idx", "problem", "answer"}),
        frozenset({"problem", "answer", "url", "year"}),
    ),
    "Maxwell-Jia/AIME_2024, HuggingFaceH4/aime_2024, MathArena/aime_2025",
)

COUNTING = DatasetForm(
    "counting",
    "the counting problems that ship with qpdsl, in levels by their number of steps",
    Field("problem"),
    {"answer": Field("answer"), "level": Field("level")},
    "equal",
    (),
    "qpdsl",
)

"""The forms in which benchmarks are published: the fields of each, its right answers and its grader.

HumanEval and MBPP come to the same fields, which the grader `code` reads: `tests`, a list of Python texts, each to be
run after the answer; `setup`, Python to be run before it; and of HumanEval `prompt`, the head that an answer may go on
from, and `entry_point`, the function's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from qpdsl.errors import UsageError, unknown
from qpdsl.runs.data.field_mapping import (
    Combined,
    Computed,
    FieldSource,
    FirstOf,
    RecordField,
    is_there,
    last_box,
    last_number,
)


@dataclass(frozen=True, slots=True)
class DatasetForm:
    """A published form. `problem` goes to the parameter that takes the problem, `sources` to names.

    `grader` is the name of the grader that its papers' measure comes to. `fields` are those that it is published with:
    a record with all of one of these sets has this form, if `told_by` says so too. `origin` says where it is published.
    """

    name: str
    title: str
    problem: FieldSource
    sources: Mapping[str, FieldSource]
    grader: str
    fields: tuple[frozenset[str], ...]
    origin: str
    told_by: Callable[[Mapping[str, Any]], bool] = field(default=lambda record: True)

    def source(self, name: str | None, fields: Container[str]) -> FieldSource | None:
        """The source of a name in data with these fields, None where it has nothing for it; the problem's without."""
        source = self.problem if name is None else self.sources[name]
        if isinstance(source, FirstOf):
            source = source.among(fields)
        return source if is_there(source, fields) else None

    def is_form_of(self, record: Mapping[str, Any]) -> bool:
        """Whether the fields of a record are those of this form."""
        return any(names <= record.keys() for names in self.fields) and self.told_by(record)


_MARK = "####"
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")


def _fields(*names: str) -> FieldSource:
    return FirstOf(tuple(map(RecordField, names))) if len(names) > 1 else RecordField(names[0])


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
    {"answer": Computed(RecordField("answer"), _behind_mark, f"behind `{_MARK}`")},
    "number",
    (frozenset({"question", "answer"}), frozenset({"problem", "answer"})),
    "openai/gsm8k, grade-school-math",
    _has_mark,
)

_MATH_SOURCES: Mapping[str, FieldSource] = {
    "answer": FirstOf((RecordField("answer"), Computed(RecordField("solution"), last_box, "the last box"))),
    "level": Computed(RecordField("level"), _level, "the number"),
    "subject": _fields("subject", "type"),
}

MATH = DatasetForm(
    "math",
    "MATH: problems of competitions, with a formula as the answer, in levels 1 to 5",
    RecordField("problem"),
    {**_MATH_SOURCES, "id": _fields("unique_id", "id")},
    "math",
    (frozenset({"problem", "solution", "level", "type"}),),
    "hendrycks/math, EleutherAI/hendrycks_math",
    _has_box,
)

MATH500 = DatasetForm(
    "math500",
    "MATH-500: the 500 problems of MATH's test set that PRM800K held out",
    RecordField("problem"),
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
        "answer": FirstOf(
            tuple(Computed(RecordField(name), last_number, "the number") for name in ("answer", "Answer"))
        ),
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
    RecordField("problem"),
    {"answer": RecordField("answer"), "level": RecordField("level")},
    "equal",
    (),
    "qpdsl",
)


def _humaneval_tests(test: str, entry_point: str) -> list[str]:
    return [f"{test}\n\ncheck({entry_point})\n"]


def _task(text: str, tests: list[str]) -> str:
    """The task as the paper of MBPP puts it: the tests say what the function is called."""
    return "\n\n".join([text, "Your code should pass these tests:", "\n".join(tests)])


def _is_mbpp(record: Mapping[str, Any]) -> bool:
    return isinstance(record["test_list"], list)


HUMANEVAL = DatasetForm(
    "humaneval",
    "HumanEval: the body of a Python function from its head and docstring",
    RecordField("prompt"),
    {
        "id": RecordField("task_id"),
        "tests": Combined(("test", "entry_point"), _humaneval_tests),
        "prompt": RecordField("prompt"),
        "entry_point": RecordField("entry_point"),
    },
    "code",
    (frozenset({"task_id", "prompt", "test", "entry_point"}),),
    "openai/openai_humaneval, evalplus/humanevalplus",
)

MBPP = DatasetForm(
    "mbpp",
    "MBPP: a Python function from a sentence and three tests",
    FirstOf((Combined(("text", "test_list"), _task), Combined(("prompt", "test_list"), _task))),
    {
        "id": RecordField("task_id"),
        "tests": RecordField("test_list"),
        "setup": FirstOf((RecordField("test_setup_code"), Combined(("test_imports",), "\n".join))),
    },
    "code",
    (frozenset({"text", "test_list"}), frozenset({"prompt", "test_list", "test_imports"})),
    "google-research-datasets/mbpp, its full and its sanitized set",
    _is_mbpp,
)


def _without_nulls(arguments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """On the hub each instruction has the arguments of all kinds, null where its own kind has none such."""
    return [{name: value for name, value in part.items() if value is not None} for part in arguments]


IFEVAL = DatasetForm(
    "ifeval",
    "IFEval: prompts with instructions that can be checked, such as a number of words",
    RecordField("prompt"),
    {
        "id": FirstOf((RecordField("key"), RecordField("id"))),
        "prompt": RecordField("prompt"),
        "instruction_id_list": RecordField("instruction_id_list"),
        "kwargs": Combined(("kwargs",), _without_nulls),
    },
    "ifeval",
    (frozenset({"prompt", "instruction_id_list", "kwargs"}),),
    "google/IFEval, google-research",
)


FORMS = {form.name: form for form in (GSM8K, MATH500, MATH, AIME, HUMANEVAL, MBPP, IFEVAL, COUNTING)}


def form_called(name: str) -> DatasetForm:
    """Raises UsageError where no form is called so."""
    if name not in FORMS:
        raise UsageError(unknown(name, FORMS, "no data set is known as"))
    return FORMS[name]


def form_of(record: Mapping[str, Any]) -> DatasetForm | None:
    """The form that a record has by its fields, None where it is none of these."""
    return next((form for form in FORMS.values() if form.is_form_of(record)), None)

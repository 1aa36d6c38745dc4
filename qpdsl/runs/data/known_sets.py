"""The forms in which benchmarks are published: the fields of each, its right answers and its grader.

HumanEval and MBPP come to the same fields, which the grader `code` reads: `tests`, a list of Python texts, each to be
run after the answer, or of LiveCodeBench what a program reads and is to write; `setup`, Python to be run before it; and
of HumanEval `prompt`, the head that an answer may go on from, and `entry_point`, the function's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from qpdsl.errors import UsageError, unknown
from qpdsl.runs.data.contest_tests import contest_tests
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
    `seeded` gives the sources of problem and answer by a seed, where a problem has options without an order.
    """

    name: str
    title: str
    problem: FieldSource
    sources: Mapping[str, FieldSource]
    grader: str
    fields: tuple[frozenset[str], ...]
    origin: str
    told_by: Callable[[Mapping[str, Any]], bool] = field(default=lambda record: True)
    seeded: Callable[[int], tuple[FieldSource, FieldSource]] | None = None

    def of_seed(self, seed: int) -> DatasetForm:
        """The form with options in the order of a seed, where it has any that it puts in an order."""
        if self.seeded is None:
            return self
        problem, answer = self.seeded(seed)
        return replace(self, problem=problem, sources={**self.sources, "answer": answer})

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


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def _with_options(question: str, options: Sequence[str]) -> str:
    lines = [f"{letter}) {option.strip()}" for letter, option in zip(_LETTERS, options, strict=False)]
    return "\n".join([question.strip(), "", *lines])


def _gpqa(seed: int) -> tuple[FieldSource, FieldSource]:
    """The question with its four options, and the letter of the right one, which is published as the first.

    The order depends on the seed and the question alone, so a row keeps it whatever other rows there are.
    """

    def order(question: str) -> list[int]:
        key = [blake2b(f"{seed}:{place}:{question}".encode(), digest_size=16).digest() for place in range(4)]
        return sorted(range(4), key=key.__getitem__)

    def problem(question: str, *options: str) -> str:
        return _with_options(question, [options[place] for place in order(question)])

    def letter(question: str, *options: str) -> str:
        return _LETTERS[order(question).index(0)]

    reads = ("Question", "Correct Answer", *_WRONG)
    return Combined(reads, problem), Combined(reads, letter)


GPQA = DatasetForm(
    "gpqa",
    "GPQA: questions of graduate science with four options",
    _gpqa(0)[0],
    {
        "answer": _gpqa(0)[1],
        "id": RecordField("Record ID"),
        "domain": RecordField("High-level domain"),
        "subdomain": RecordField("Subdomain"),
    },
    "choice",
    (frozenset({"Question", "Correct Answer", *_WRONG}),),
    "Idavidrein/gpqa",
    seeded=_gpqa,
)

MMLU_PRO = DatasetForm(
    "mmlu_pro",
    "MMLU-Pro: questions of 14 subjects with up to ten options",
    Combined(("question", "options"), _with_options),
    {
        "answer": RecordField("answer"),
        "id": RecordField("question_id"),
        "category": RecordField("category"),
    },
    "choice",
    (frozenset({"question_id", "question", "options", "answer", "answer_index", "category"}),),
    "TIGER-Lab/MMLU-Pro",
)


def _contest_task(text: str, starter: str) -> str:
    """The task as LiveCodeBench puts it: what a program reads and writes, or the head of what it has to define."""
    if starter.strip():
        form = f"Use this starter code:\n\n```python\n{starter.strip()}\n```"
    else:
        form = "Read the input from stdin and write the answer to stdout, in Python."
    return f"{text.strip()}\n\n{form}"


LIVECODEBENCH = DatasetForm(
    "livecodebench",
    "LiveCodeBench: problems of programming contests, each with its date",
    Combined(("question_content", "starter_code"), _contest_task),
    {
        "id": RecordField("question_id"),
        "tests": Combined(("public_test_cases", "private_test_cases", "metadata"), contest_tests),
        "date": RecordField("contest_date"),
        "difficulty": RecordField("difficulty"),
        "platform": RecordField("platform"),
    },
    "code",
    (frozenset({"question_content", "starter_code", "public_test_cases", "private_test_cases", "contest_date"}),),
    "livecodebench/code_generation, livecodebench/code_generation_lite",
)


def _with_functions(question: Any, functions: Any) -> str:
    """The one turn of a user, and the functions that there are."""
    turns = question[0] if question and isinstance(question[0], list) else question
    if isinstance(question, list) and len(question) > 1 and isinstance(question[0], list):
        raise ValueError("a dialogue of several turns is no one question")
    asked = turns if isinstance(turns, str) else "\n\n".join(turn["content"] for turn in turns)
    known = json.dumps(functions, ensure_ascii=False)
    form = "Answer with calls alone: [name(parameter=value, …), …]"
    return f"{asked}\n\nThe functions that you may call, as JSON:\n\n{known}\n\n{form}"


BFCL = DatasetForm(
    "bfcl",
    "BFCL: calls of functions that answer a question, with the values that their parameters may have",
    Combined(("question", "function"), _with_functions),
    {"id": RecordField("id"), "ground_truth": RecordField("ground_truth")},
    "calls",
    (frozenset({"id", "question", "function", "ground_truth"}),),
    "gorilla-llm/Berkeley-Function-Calling-Leaderboard, each question with the answer of its id",
)

FORMS = {
    form.name: form
    for form in (
        GSM8K, MATH500, MATH, AIME, GPQA, MMLU_PRO, HUMANEVAL, MBPP, LIVECODEBENCH, IFEVAL, BFCL, COUNTING
    )
}  # fmt: skip


def form_called(name: str, seed: int = 0) -> DatasetForm:
    """The form, its options in the order of a seed. Raises UsageError where no form is called so."""
    if name not in FORMS:
        raise UsageError(unknown(name, FORMS, "no data set is known as"))
    return FORMS[name].of_seed(seed)


def form_of(record: Mapping[str, Any]) -> DatasetForm | None:
    """The form that a record has by its fields, None where it is none of these."""
    return next((form for form in FORMS.values() if form.is_form_of(record)), None)

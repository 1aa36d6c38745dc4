"""Functions to write in Python, with the tests that they must pass: HumanEval and MBPP.

Both come to the same fields, which the grader `code` reads: `tests`, a list of Python texts, each to be run after the
answer; `setup`, Python to be run before it; and of HumanEval `prompt`, the head that an answer may go on from, and
`entry_point`, the function's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qpdsl.inputs.known.dataset_form import DatasetForm
from qpdsl.inputs.mapping.field_source import Combined, Field, FirstOf


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
    Field("prompt"),
    {
        "id": Field("task_id"),
        "tests": Combined(("test", "entry_point"), _humaneval_tests),
        "prompt": Field("prompt"),
        "entry_point": Field("entry_point"),
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
        "id": Field("task_id"),
        "tests": Field("test_list"),
        "setup": FirstOf((Field("test_setup_code"), Combined(("test_imports",), "\n".join))),
    },
    "code",
    (frozenset({"text", "test_list"}), frozenset({"prompt", "test_list", "test_imports"})),
    "google-research-datasets/mbpp, its full and its sanitized set",
    _is_mbpp,
)

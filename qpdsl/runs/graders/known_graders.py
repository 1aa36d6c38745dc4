"""The graders by the names that `--grader` and named data sets use."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from qpdsl.errors import UsageError, unknown
from qpdsl.executor.runtime.sandbox.permission import UNCONFINED, CodePermission
from qpdsl.runs.data.input_row import InputData
from qpdsl.runs.graders.call_answer import CallAnswer
from qpdsl.runs.graders.choice_answer import ChoiceAnswer
from qpdsl.runs.graders.code_answer import CodeAnswer
from qpdsl.runs.graders.grader import EqualAnswer, Grader
from qpdsl.runs.graders.instruction_answer import InstructionAnswer
from qpdsl.runs.graders.math_answer import MathAnswer
from qpdsl.runs.graders.number_answer import NumberAnswer
from qpdsl.runs.graders.python_answer import PythonAnswer
from qpdsl.runs.graders.record_answer import RecordAnswer
from qpdsl.runs.graders.text_answer import ContainedAnswer, TextAnswer
from qpdsl.stage_options import check_permission

PLAIN: Mapping[str, Callable[[], Grader]] = {
    "equal": EqualAnswer,
    "text": TextAnswer,
    "contains": ContainedAnswer,
    "number": NumberAnswer,
    "math": MathAnswer,
    "choice": ChoiceAnswer,
    "json": RecordAnswer,
    "code": CodeAnswer,
    "ifeval": InstructionAnswer,
    "calls": CallAnswer,
}
# Those that take a number in brackets.
_WITH_NUMBER: Mapping[str, Callable[[float], Grader]] = {"number": NumberAnswer, "code": CodeAnswer}
_NUMBERED = re.compile(r"(\w+)\((.+)\)")
PYTHON, JUDGE = "python:", "judge:"


def grader_named(
    name: str, *, allow_code: CodePermission = False, judge: Callable[[str], Grader] | None = None
) -> Grader:
    """The grader of a name such as `math`, `number(0.01)`, `python:FILE.py:FUNCTION` or `judge:PROGRAM`.

    `judge` makes one of a program. Raises UsageError, also for `code` where running code is not allowed.
    """
    if name.startswith(PYTHON):
        file, _, function = name.removeprefix(PYTHON).rpartition(":")
        if not file or not function:
            raise UsageError(f"`--grader {name}` takes python:FILE.py:FUNCTION")
        return PythonAnswer(file, function)
    if name.startswith(JUDGE):
        if judge is None or name == JUDGE:
            raise UsageError(f"`--grader {name}` takes judge:PROGRAM, a file or the name of a shipped program")
        return judge(name.removeprefix(JUDGE))
    grader = _plain(name)
    if isinstance(grader, CodeAnswer):
        check_permission("the grader `code` runs code that a model wrote", allow_code)
        return replace(grader, unconfined=allow_code == UNCONFINED)
    return grader


def check_grader(name: str) -> None:
    """Raises UsageError for a name that no grader has, as `grader_named` does, without making one."""
    if not name.startswith((PYTHON, JUDGE)):
        _plain(name)


def grader_of(data: InputData, name: str | None, make: Callable[[str], Grader]) -> Grader:
    """What grades the answers to some data: the named grader, else what goes with a named data set, else equality.

    `make` makes a grader of its name, as `grader_named` does. Raises UsageError where a grader is named that can grade
    none of the rows.
    """
    named = name or data.grader or "equal"
    grader = make(named)
    if name is not None and not grades_any(grader, data):
        raise none_to_grade(named)
    return grader


def grades_any(grader: Grader, data: InputData) -> bool:
    """Whether a grader can grade a row of some data."""
    return any(grader.applies(row) for row in data.rows)


def none_to_grade(name: str) -> UsageError:
    """That a grader that was asked for can grade none of the rows."""
    return UsageError(
        f"the grader `{name}` can grade none of the rows: they have no right answer of its kind",
        "`--map answer=FIELD` names the field that has it",
    )


def _plain(name: str) -> Grader:
    if name in PLAIN:
        return PLAIN[name]()
    if (match := _NUMBERED.fullmatch(name)) and match[1] in _WITH_NUMBER:
        try:
            number = float(match[2])
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise UsageError(f"`--grader {name}` takes a number above 0 in its brackets")
        return _WITH_NUMBER[match[1]](number)
    names = [*PLAIN, f"{PYTHON}FILE.py:FUNCTION", f"{JUDGE}PROGRAM"]
    raise UsageError(f"`--grader`: {unknown(name, names, 'there is no grader')}", f"graders: {', '.join(names)}")

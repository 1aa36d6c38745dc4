"""A program that grades answers: a language model as the judge."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any

from qpdsl.errors import UsageError, shorten
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.values.value import Value, shown
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.graders.grader import Grade, Grader, GraderError, right_texts

if TYPE_CHECKING:
    from qpdsl.session.session import Session

# What a judge's parameters may be called, by what they get.
_PARAMETERS = ("problem", "answer", "reference")
_YES, _NO = ("yes", "true", "right", "correct"), ("no", "false", "wrong", "incorrect")


class JudgeProgram:
    """`judge:PROGRAM`. The program's parameters say what it gets: `problem`, `answer`, `reference`.

    It gives true or false, `yes` or `no`, or a number from 0 to 1 (1 is correct). `grade` raises GraderError where it
    gives anything else, or fails. It runs in the session of the run (`bind`), with the seed 0, and what it takes is
    counted by `prompt_tokens` and `sampled_tokens`, not with the row. Raises UsageError for other parameters.
    """

    def __init__(self, plan: PhysicalPlan, version: str) -> None:
        """`version` tells the program, and its models, from others."""
        names = [param.name for param in plan.params]
        if wrong := [param.name for param in plan.params if param.name not in _PARAMETERS and param.default is None]:
            raise UsageError(
                f"`--grader`: the judge `{plan.name}` wants `{wrong[0]}`",
                f"its parameters are some of {', '.join(f'`{name}`' for name in _PARAMETERS)}",
            )
        if "answer" not in names:
            raise UsageError(f"`--grader`: the judge `{plan.name}` has no parameter `answer`")
        self.plan = plan
        self.name = f"judge:{plan.name}"
        self.version = version
        self.prompt_tokens = 0
        self.sampled_tokens = 0
        self._names = names
        self._session: Session | None = None

    def __reduce__(self) -> tuple[type[JudgeProgram], tuple[PhysicalPlan, str]]:
        return JudgeProgram, (self.plan, self.version)

    def bind(self, session: Session) -> None:
        """Has the judge run in a session. Raises ModelError."""
        session.load(self.plan)
        self._session = session

    def applies(self, row: InputRow) -> bool:
        return row.reference is not None or "reference" not in self._names

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        if answer is None:
            return Grade(False)
        if self._session is None:
            raise UsageError(
                f"rows that are there cannot be graded by `{self.name}`, which was not asked when they were run",
                "grade them by what they were graded by, or run them anew",
            )
        result = await self._session.run(self.plan, self._arguments(answer, row), 0, f"{row.id} judged", baseline=True)
        if result.fault is not None:
            raise result.fault
        self.prompt_tokens += result.prompt_tokens
        self.sampled_tokens += result.sampled_tokens
        if result.error is not None:
            raise GraderError(f"the grader `{self.name}` failed: {result.error}")
        return self._grade(result.value)

    def _grade(self, value: object) -> Grade:
        match value:
            case bool():
                return Grade(value, float(value))
            case int() | float() if 0 <= value <= 1:
                return Grade(value == 1, float(value))
            case str():
                word = value.strip().strip(".!").casefold()
                if word in (*_YES, *_NO):
                    return Grade(word in _YES, float(word in _YES))
        given = shorten(reprlib.repr(value))
        raise GraderError(
            f"the grader `{self.name}` gave {given}, not true or false, yes or no, or a number from 0 to 1"
        )

    def _arguments(self, answer: Any, row: InputRow) -> dict[str, Value]:
        problem = next((value for value in row.arguments.values() if isinstance(value, str)), "")
        given: dict[str, Value] = {
            "problem": problem,
            "answer": shown(answer),
            "reference": " or ".join(right_texts(row)),
        }
        defaults = self.plan.values()
        return {name: given[name] if name in given else defaults[name] for name in self._names}


def bind_grader(grader: Grader, session: Session) -> None:
    """Has a grader that is a program run in a session; others need none. Raises ModelError."""
    if isinstance(grader, JudgeProgram):
        grader.bind(session)

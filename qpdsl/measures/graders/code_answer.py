"""Code that has to pass the tests of its row, run in a sandbox: HumanEval and MBPP."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qpdsl.errors import UsageError
from qpdsl.executor.runtime.scoring.checks import code_in, in_sandbox
from qpdsl.executor.runtime.scoring.sandbox import NoSandbox
from qpdsl.inputs.input_row import InputRow
from qpdsl.measures.grader import Grade
from qpdsl.planner.values.json_values import shown

USUAL_SECONDS = 5.0


@dataclass(frozen=True)
class CodeAnswer:
    """Runs the last block of Python in an answer, or all of it, with the tests in the row's field `tests`.

    The field `setup` is run before it. Where the row has a `prompt`, which is the head of a function, an answer that
    does not define `entry_point` goes on from it. `points` is the share of tests that pass, each run by itself; all
    must pass for the answer to be correct. Each has `seconds` of processor time. Code is run only where the user allows
    it (`--allow-code`), as `score passes(…)` runs it.
    """

    seconds: float = USUAL_SECONDS
    version = "1"

    @property
    def name(self) -> str:
        return "code" if self.seconds == USUAL_SECONDS else f"code({self.seconds:g})"

    def applies(self, row: InputRow) -> bool:
        return bool(_tests(row))

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        if answer is None:
            return Grade(False, 0.0)
        program, tests = _program(code_in(shown(answer)), row), _tests(row)
        try:
            passed = await asyncio.gather(*(in_sandbox(program, test, self.seconds) for test in tests))
        except NoSandbox as error:
            raise UsageError(f"the grader `code`: {error}") from error
        return Grade(all(passed), sum(passed) / len(passed))


def _tests(row: InputRow) -> Sequence[str]:
    tests = row.fields.get("tests")
    return [tests] if isinstance(tests, str) else [test for test in tests or () if isinstance(test, str)]


def _program(code: str, row: InputRow) -> str:
    """The code to test, with what the row gives it."""
    head, entry = row.fields.get("prompt"), row.fields.get("entry_point")
    if isinstance(head, str) and isinstance(entry, str):
        # An answer that is whole still may use what the head imports.
        code = f"{head}\n    pass\n\n{code}" if _defines(code, entry) else head + code
    return "\n".join(filter(None, (row.fields.get("setup"), code)))


def _defines(code: str, name: str) -> bool:
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError):
        return f"def {name}" in code
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name for node in body)

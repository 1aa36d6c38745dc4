"""Code that has to pass the tests of its row, run in a sandbox: HumanEval, MBPP and LiveCodeBench."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qpdsl.errors import UsageError
from qpdsl.executor.runtime.sandbox.run import NoSandbox
from qpdsl.executor.runtime.scoring.checks import code_in, in_sandbox
from qpdsl.planner.values.value import shown
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.graders.grader import Grade, GraderError

USUAL_SECONDS = 5.0
# Runs a program on what it reads, and holds against `output` what it writes: line by line, without white space around,
# and as numbers where the texts differ.
_STREAMED = """
import io as _io, sys as _sys
from decimal import Decimal as _Decimal

def _same(_one, _other):
    try:
        return _one == _other or [*map(_Decimal, _one.split())] == [*map(_Decimal, _other.split())]
    except ArithmeticError:
        return False

_kept, _bytes = (_sys.stdin, _sys.stdout), _io.BytesIO()
_sys.stdin = _io.TextIOWrapper(_io.BytesIO({input!r}.encode()), encoding="utf-8")
_sys.stdout = _written = _io.TextIOWrapper(_bytes, encoding="utf-8")
try:
    exec(compile({code!r}, "<program>", "exec", dont_inherit=True), {{"__name__": "__main__"}})
except SystemExit:
    pass
finally:
    _sys.stdin, _sys.stdout = _kept
_written.flush()
_lines, _wanted = (
    [_line.strip() for _line in _text.strip().split("\\n")] for _text in (_bytes.getvalue().decode(), {output!r})
)
assert len(_lines) == len(_wanted) and all(map(_same, _lines, _wanted)), "it writes something else"
"""


@dataclass(frozen=True)
class CodeAnswer:
    """Runs the last block of Python in an answer, or all of it, with the tests in the row's field `tests`.

    A test is Python that is run after it, or a record of what it reads as a program, `input`, and has to write,
    `output`.
    The field `setup` is run before it. Where the row has a `prompt`, which is the head of a function, an answer that
    does not define `entry_point` goes on from it. `points` is the share of tests that pass, each run by itself; all
    must pass for the answer to be correct. Each has `seconds` of processor time. Code is run only where the user allows
    it (`--allow-code`), as `score passes(…)` runs it; `unconfined`: though a wall of the sandbox is lacking.
    """

    seconds: float = USUAL_SECONDS
    unconfined: bool = False
    version = "1"

    @property
    def name(self) -> str:
        return "code" if self.seconds == USUAL_SECONDS else f"code({self.seconds:g})"

    def applies(self, row: InputRow) -> bool:
        return bool(row.fields.get("tests"))

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        if answer is None:
            return Grade(False, 0.0)
        program, tests = _program(code_in(shown(answer)), row), _tests(row)
        try:
            runs = [in_sandbox(*_run(program, test), self.seconds, unconfined=self.unconfined) for test in tests]
            passed = [failure is None for failure in await asyncio.gather(*runs)]
        except NoSandbox as error:
            raise UsageError(f"the grader `code`: {error}") from error
        return Grade(all(passed), sum(passed) / len(passed))


def _tests(row: InputRow) -> Sequence[str | Mapping[str, str]]:
    tests = row.fields.get("tests")
    own = [tests] if isinstance(tests, str) else tests
    if not isinstance(own, Sequence) or not all(isinstance(test, str) or _is_streamed(test) for test in own):
        form = "no text, and no list of texts or of records with an `input` and an `output`"
        raise GraderError(f"the grader `code`: the field `tests` is {form}")
    return own


def _is_streamed(test: Any) -> bool:
    return isinstance(test, Mapping) and all(isinstance(test.get(name), str) for name in ("input", "output"))


def _run(program: str, test: str | Mapping[str, str]) -> tuple[str, str]:
    """The code and the tests that the sandbox runs."""
    if isinstance(test, str):
        return program, test
    return "", _STREAMED.format(code=program, input=test["input"], output=test["output"])


def _program(code: str, row: InputRow) -> str:
    """The code to test, with what the row gives it. Raises GraderError."""
    setup = row.fields.get("setup")
    if not isinstance(setup, str | None):
        raise GraderError("the grader `code`: the field `setup` is no text")
    head, entry = row.fields.get("prompt"), row.fields.get("entry_point")
    if isinstance(head, str) and isinstance(entry, str):
        # An answer that is whole still may use what the head imports.
        code = f"{head}\n    pass\n\n{code}" if _defines(code, entry) else head + code
    return "\n".join(filter(None, (setup, code)))


def _defines(code: str, name: str) -> bool:
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last: it is nested too deep for the parser
        return f"def {name}" in code
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name for node in body)

"""Scores that need no model: equality with a reference, valid JSON, and whether code passes its unit tests."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from qpdsl.executor.runtime.instance.candidates import Candidates
from qpdsl.executor.runtime.instance.instance import Instance, RowError
from qpdsl.executor.runtime.instance.mathematics import NoMathematics
from qpdsl.executor.runtime.operators.valid_records import fault_of
from qpdsl.executor.runtime.operators.vote import number_of
from qpdsl.executor.runtime.sandbox.permission import UNCONFINED
from qpdsl.executor.runtime.sandbox.run import NoSandbox, failure_of
from qpdsl.executor.runtime.scoring.score import scored_texts
from qpdsl.planner.plan import ops
from qpdsl.planner.values.value import Value, format_value

# Any document satisfies it.
_ANYTHING = "{}"
# Nothing of its first line is tried twice, as a line of marks alone may be long.
_FENCED = re.compile(r"^ {0,3}(`{3,}+|~{3,}+)[ \t]*+(\w*+)[^\n]*+\n(.*?)(?:^ {0,3}\1|\Z)", re.MULTILINE | re.DOTALL)
_PYTHON = ("python", "py", "python3", "")
_USUAL_TIMEOUT = 5.0
# A process that waits for a processor is closer to its end by the clock.
_PROCESSES = ThreadPoolExecutor(max(os.cpu_count() or 1, 1), "qpdsl-sandbox")


async def equal(op: ops.Equal, rows: Candidates, instance: Instance) -> Candidates:
    """1.0 or 0.0, None where one of the two is none. Raises RowError where there is nothing to compare with."""
    pairs = zip(instance.values(op.answer, rows), instance.values(op.reference, rows), strict=True)
    scores = [await _same(op, answer, reference, instance) for answer, reference in pairs]
    return _with_scores(op.made, rows, scores)


async def _same(op: ops.Equal, answer: Value, reference: Value, instance: Instance) -> bool | None:
    if answer is None or reference is None:
        return None
    left, right = format_value(answer).strip(), format_value(reference).strip()
    if left == right or op.by == "text":
        return left == right
    if number_of(answer) == number_of(reference) or op.by == "number":
        return number_of(answer) == number_of(reference)
    try:
        return await instance.services.mathematics.same(right, left)
    except NoMathematics as error:
        raise RowError(str(error).replace("equal=math", "by=math")) from error


async def valid_json(op: ops.ValidJson, rows: Candidates, instance: Instance) -> Candidates:
    """1.0 or 0.0, None where the text is none."""
    schema = _ANYTHING if op.source is None else op.source
    texts = scored_texts(op.of, rows, instance)
    return _with_scores(op.made, rows, [None if text is None else fault_of(text, schema) is None for text in texts])


async def passes(op: ops.Passes, rows: Candidates, instance: Instance) -> Candidates:
    """1.0 or 0.0, or what fails where that is asked, None where text or tests are none. Equal code is run once.

    Raises RowError where the caller does not allow code to be run, or where no sandbox can be made.
    """
    allowed = instance.services.allow_code
    if not allowed:
        raise RowError(f"`{op.named}` runs code that a model wrote, and that is not allowed here")
    texts, tests = scored_texts(op.of, rows, instance), instance.values(op.tests, rows)
    limit = instance.number("timeout", op.timeout) or _USUAL_TIMEOUT
    keys = [
        None if text is None or test is None else ("passes", code_in(text), format_value(test), str(limit))
        for text, test in zip(texts, tests, strict=True)
    ]
    async with instance.scoring("passes"):
        new = [key for key in dict.fromkeys(keys) if key is not None and key not in instance.judged]
        try:
            runs = [in_sandbox(code, test, limit, unconfined=allowed == UNCONFINED) for _, code, test, _ in new]
            instance.judged.update(zip(new, await asyncio.gather(*runs), strict=True))
        except NoSandbox as error:
            raise RowError(f"`{op.named}`: {error}") from error
    failures = [None if key is None else instance.judged[key] for key in keys]
    if op.why:
        return tuple(row.with_column(op.made, failure) for row, failure in zip(rows, failures, strict=True))
    passed = (None if key is None else failure is None for key, failure in zip(keys, failures, strict=True))
    return _with_scores(op.made, rows, [*passed])


async def in_sandbox(code: str, tests: str, seconds: float, *, unconfined: bool = False) -> str | None:
    """Why code does not pass tests in so many seconds of processor time; see `failure_of`. Raises NoSandbox.

    As many run at once as there are processors.
    """
    run = partial(failure_of, code, tests, seconds, unconfined=unconfined)
    return await asyncio.get_running_loop().run_in_executor(_PROCESSES, run)


def code_in(text: str) -> str:
    """The Python code in a text: its last fenced block of Python, else the whole text."""
    blocks = [match[3] for match in _FENCED.finditer(text) if match[2].lower() in _PYTHON]
    return blocks[-1] if blocks else text


def _with_scores(column: str, rows: Candidates, scores: Sequence[bool | None]) -> Candidates:
    values = [None if score is None else float(score) for score in scores]
    return tuple(row.with_column(column, value) for row, value in zip(rows, values, strict=True))

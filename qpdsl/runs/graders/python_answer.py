"""A Python function of the user that grades answers."""

from __future__ import annotations

import importlib.util
import inspect
import math
import reprlib
import sys
from collections.abc import Callable
from contextlib import chdir
from hashlib import blake2b
from pathlib import Path
from typing import Any

from qpdsl.errors import UsageError, reason, shorten
from qpdsl.executor.runtime.instance.row_tasks import RowClock
from qpdsl.executor.runtime.instance.user_code import CallThread, UserCodeError, in_loop, raised
from qpdsl.planner.values.value import plain
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.graders.grader import Grade, GraderError

_GIVEN = ("answer", "reference", "row")
# A call that takes longer does not come back.
_SECONDS = 60.0


class FunctionAnswer:
    """A function that grades. The names of its parameters say what it gets.

    `answer` is the program's, `reference` the row's right answer (a list of several, None without one), `row` all other
    fields of the row. It gives True or False, a number from 0 to 1 (1 is correct), or None where it cannot say; it may
    be async. Calls are made one at a time, in a thread of their own, and have a minute each.
    """

    def __init__(self, call: Callable[..., Any], name: str, version: str, place: str) -> None:
        """`version` tells what the function computes, `place` names it in messages.

        Raises UsageError where the function wants something else.
        """
        self._call = call
        names = list(inspect.signature(call).parameters)
        if not names or not set(names) <= set(_GIVEN):
            raise UsageError(f"{place} must take some of {', '.join(_GIVEN)}, not ({', '.join(names)})")
        self._names = names
        self._thread = CallThread(name)
        self.name = f"python:{name}"
        self.version = version

    def applies(self, row: InputRow) -> bool:
        return row.reference is not None or "reference" not in self._names

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        reference = [*row.reference] if isinstance(row.reference, tuple) else row.reference
        values = {"answer": plain(answer), "reference": reference, "row": dict(row.fields)}
        given = {name: values[name] for name in self._names}
        try:
            # Calls wait for one another, and that time is not theirs.
            async with RowClock(_SECONDS) as clock:
                if inspect.iscoroutinefunction(self._call):
                    value = await in_loop(lambda: self._call(**given), clock)
                else:
                    (value,) = await self._thread.run([lambda: self._call(**given)], clock)
        except TimeoutError as error:
            raise GraderError(f"the grader `{self.name}` took more than {_SECONDS:g} s") from error
        except UserCodeError as error:
            raise GraderError(f"the grader `{self.name}` failed: {error}") from error
        return self._grade(value)

    def _grade(self, value: object) -> Grade:
        match value:
            case None:
                return Grade(None)
            case bool():
                return Grade(value, float(value))
            case int() | float() if math.isfinite(value) and 0 <= value <= 1:
                return Grade(value == 1, float(value))
        given = shorten(reprlib.repr(value))
        raise GraderError(f"the grader `{self.name}` gave {given}, not True or False, a number from 0 to 1, or None")


class PythonAnswer(FunctionAnswer):
    """`python:FILE.py:FUNCTION`. Raises UsageError where there is no such function, or it wants something else."""

    def __init__(self, file: str, function: str) -> None:
        self._place = (file, function)
        call = _function(file, function)
        version = blake2b(Path(file).read_bytes(), digest_size=8).hexdigest()
        super().__init__(call, f"{Path(file).name}:{function}", version, f"`{function}` of `{file}`")

    def __reduce__(self) -> tuple[type[PythonAnswer], tuple[str, str]]:
        return PythonAnswer, self._place


def _function(file: str, name: str) -> Callable[..., Any]:
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"`--grader`: there is no Python file `{file}`")
    module_name = f"qpdsl_grader_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"`--grader`: `{file}` is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        with chdir("."):
            spec.loader.exec_module(module)
    except OSError as error:
        raise UsageError(f"`--grader`: cannot read `{file}`: {reason(error)}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"`--grader`: `{file}` failed: {raised(error)}") from error
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"`--grader`: `{file}` has no function `{name}`")
    return function

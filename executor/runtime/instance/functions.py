"""Python functions that a caller registered: scorers and extractors, by row or by batch, sync or async."""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from typing import Literal as OneOf

from qpdsl.executor.runtime.instance.row_clock import RowClock
from qpdsl.executor.runtime.instance.tasks import together
from qpdsl.executor.runtime.instance.user_code import CallThread, UserCodeError, in_loop
from qpdsl.planner.plan.evaluate import Value

# What a function can ask for by the names of its parameters; a batched one may use the plural.
_INPUTS = ("text", "problem", "row")

_TYPES: Mapping[str, type[str | int | float | bool]] = {"text": str, "int": int, "float": float, "bool": bool}
# The largest whole number that a column holds.
_LARGEST = 2**63 - 1


class FunctionError(Exception):
    """A registered function failed, or returned what it must not; the message names it and says why."""


@dataclass(frozen=True)
class PythonFunction:
    """A `scorer` returns a number for a row; an `extractor` a value of the column type `returns`, or None.

    `call` gets the row's text, and what else its parameters name: `problem`, and `row`, the columns. A `batched`
    function gets a list of each for all rows, and returns a list; `per_row` says that each of its values depends on its
    own row alone. It may be async.
    """

    name: str
    call: Callable[..., Any]
    batched: bool = False
    kind: OneOf["scorer", "extractor"] = "scorer"
    returns: str = "text"
    per_row: bool = False

    @property
    def compares(self) -> bool:
        """Whether a value may depend on the other rows of the stage, so that the function has to see them all."""
        return self.batched and not self.per_row

    @property
    def unknown_inputs(self) -> list[str]:
        """The parameters without a default that nothing of a row goes to."""
        try:
            parameters = inspect.signature(self.call).parameters.values()
        except (TypeError, ValueError):
            return []
        given = {parameter for parameter in self.inputs.values() if parameter is not None}
        if None in self.inputs.values():
            given.add(next(iter(parameters)).name)
        free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return [
            parameter.name
            for parameter in parameters
            if parameter.name not in given and parameter.default is parameter.empty and parameter.kind not in free
        ]

    @cached_property
    def inputs(self) -> Mapping[str, str | None]:
        """Which inputs the function asks for, with the parameter that each goes to; None for the first one."""
        try:
            parameters = inspect.signature(self.call).parameters.values()
        except (TypeError, ValueError):
            return {"text": None}
        inputs: dict[str, str | None] = {}
        for parameter in parameters:
            for name in _INPUTS:
                spellings = (name, f"{name}s") if self.batched else (name,)
                if parameter.name in spellings and parameter.kind != parameter.POSITIONAL_ONLY:
                    inputs[name] = parameter.name
        first = next(iter(parameters), None)
        if "text" not in inputs and first is not None and first.name not in inputs.values():
            inputs["text"] = None
        return inputs

    async def __call__(self, rows: Sequence[Mapping[str, object]], clock: RowClock | None = None) -> list[Value]:
        """The values for rows, each a mapping of inputs. Raises FunctionError.

        A plain function is called in a thread of its own, by one row of the input at a time; an `async` one in the
        event loop that the program was called in, for all rows at once. `clock` is the row's, where it has one.
        """
        calls: Sequence[Mapping[str, object]] = rows
        check: Callable[[Any], Any] = self._checked
        if self.batched:
            calls = [{name: [row[name] for row in rows] for name in self.inputs}]
            check = partial(self._checked_list, count=len(rows))
        try:
            results = await self._results(calls, check, clock or RowClock())
        except UserCodeError as error:
            raise FunctionError(f"Python function `{self.name}` failed: {error}") from error
        for result in results:
            if isinstance(result, FunctionError):
                raise result
        return results[0] if self.batched else results

    @cached_property
    def _thread(self) -> CallThread:
        thread = CallThread(self.name)
        weakref.finalize(self, thread.close)
        return thread

    @cached_property
    def _is_async(self) -> bool:
        return any(map(inspect.iscoroutinefunction, (self.call, type(self.call).__call__)))

    async def _results(
        self, calls: Sequence[Mapping[str, object]], check: Callable[[Any], Any], clock: RowClock
    ) -> list[Any]:
        """What each call gives, as `check` has it."""
        if self._is_async:
            return await together(in_loop(partial(_later, partial(self._call, call), check), clock) for call in calls)
        results = await self._thread.run([partial(_now, partial(self._call, call), check) for call in calls], clock)
        pending = [in_loop(partial(_later, result.get, check), clock) for result in results if type(result) is _Pending]
        later = iter(await together(pending))
        return [next(later) if type(result) is _Pending else result for result in results]

    def _call(self, inputs: Mapping[str, object]) -> Any:
        positional = [inputs[name] for name, parameter in self.inputs.items() if parameter is None]
        keywords = {parameter: inputs[name] for name, parameter in self.inputs.items() if parameter is not None}
        return self.call(*positional, **keywords)

    # The checks ask a value about itself, and that is the user's code too: they are made where the function runs.

    def _checked_list(self, values: Any, count: int) -> list[Value] | FunctionError:
        """The values of a batch."""
        if not isinstance(values, Sequence) and hasattr(values, "tolist"):
            values = values.tolist()
        if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != count:
            what = f"{len(values)} values" if isinstance(values, (list, tuple)) else type(values).__name__
            return FunctionError(f"Python function `{self.name}` must give a list of {count}, not {what}")
        checked: list[Value] = []
        for value in values:
            result = self._checked(value)
            if isinstance(result, FunctionError):
                return result
            checked.append(result)
        return checked

    def _checked(self, value: Any) -> Value | FunctionError:
        """The value as one of Python's own types."""
        if not isinstance(value, (str, bool, int, float)) and hasattr(value, "item"):
            value = value.item()
        if value is None and self.kind == "extractor":
            return None
        wanted = "float" if self.kind == "scorer" else self.returns
        if wanted == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
            number = _finite(value)
            return self._refusal("a finite number", value) if number is None else number
        if wanted == "float" or type(value) is not _TYPES[wanted]:
            return self._refusal("a number" if self.kind == "scorer" else f"{self.returns} or None", value)
        if isinstance(value, int) and abs(value) > _LARGEST:
            return self._refusal("a whole number of up to 64 bits", value)
        if isinstance(value, str) and not _is_utf8(value):
            return self._refusal("text that UTF-8 can hold", value)
        checked: Value = value
        return checked

    def _refusal(self, wanted: str, value: object) -> FunctionError:
        if inspect.iscoroutine(value):
            # Python would warn that it was never awaited.
            value.close()
        return FunctionError(f"Python {self.kind} `{self.name}` must give {wanted}, not {_described(value)}")


@dataclass(frozen=True, slots=True)
class _Pending:
    """What a function that is not `async` gave to be awaited."""

    awaitable: Awaitable[Any]

    def get(self) -> Awaitable[Any]:
        return self.awaitable


def _now(call: Callable[[], Any], check: Callable[[Any], Any]) -> Any:
    value = call()
    return _Pending(value) if inspect.isawaitable(value) else check(value)


async def _later(call: Callable[[], Awaitable[Any]], check: Callable[[Any], Any]) -> Any:
    return check(await call())


def _finite(value: float) -> float | None:
    """The number as a float; None where no float is it."""
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _described(value: object) -> str:
    if isinstance(value, int) and abs(value) > _LARGEST:
        return "one this large"
    if value is None or isinstance(value, (bool, int, float)):
        return str(value)
    return f"a {type(value).__name__}"

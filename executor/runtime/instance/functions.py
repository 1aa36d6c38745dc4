"""Python functions that a caller registered: scorers and extractors, by row or by batch, sync or async."""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Literal

from qpdsl.executor.runtime.instance.row_tasks import RowClock, together
from qpdsl.executor.runtime.instance.user_code import CallThread, UserCodeError, in_loop
from qpdsl.grammar.words import Type
from qpdsl.planner.values.value import Record, Value, fields_of, is_list, is_record, item_of

# What a function can ask for besides columns and parameters; one that gets several rows at once may use the plural.
_INPUTS = ("text", "problem", "row")
# Which rows a function is called with: each by itself, all that stand at the stage, or those that it has not seen yet.
Rows = Literal["one", "all", "batch"]

_TYPES: Mapping[str, type[str | int | float | bool]] = {"text": str, "int": int, "float": float, "bool": bool}
# The largest whole number that a column holds.
_LARGEST = 2**63 - 1


class FunctionError(Exception):
    """A registered function failed, or returned what it must not; the message names it and says why.

    The cause is what it raised.
    """


@dataclass(frozen=True)
class Wanted:
    """A parameter of a function that none of its usual inputs goes to; `required`: it has no default."""

    name: str
    required: bool


@dataclass(frozen=True)
class PythonFunction:
    """A `scorer` returns a number for a row; an `extractor` a value of the column type `returns`, or None.

    A `tool` is called with arguments of its own: see `tools.py`. `call` gets what its parameters name: `text`,
    `problem`, `row` (all columns), and columns and parameters of the program by their names. A first parameter of any
    other name gets the text. With `rows` "all" or "batch" it gets a list with an entry for each row, but for parameters
    of the program, and returns a list; in a "batch" each value depends on its own row alone. It may be async.
    """

    name: str
    call: Callable[..., Any]
    rows: Rows = "one"
    kind: Literal["scorer", "extractor", "tool"] = "scorer"
    returns: str = "text"

    @property
    def compares(self) -> bool:
        """Whether a value may depend on the other rows of the stage, so that the function has to see them all."""
        return self.rows == "all"

    @property
    def batched(self) -> bool:
        """Whether it is called with several rows at once."""
        return self.rows != "one"

    @cached_property
    def _parameters(self) -> tuple[inspect.Parameter, ...]:
        try:
            parameters = inspect.signature(self.call).parameters.values()
        except (TypeError, ValueError):
            return (inspect.Parameter("text", inspect.Parameter.POSITIONAL_ONLY),)
        return tuple(parameters)

    @cached_property
    def usual(self) -> Mapping[str, str]:
        """Which of text, problem and row the function asks for by name, with the parameter that each goes to."""
        usual: dict[str, str] = {}
        for parameter in self._parameters:
            for name in _INPUTS:
                spellings = (name, f"{name}s") if self.batched else (name,)
                if parameter.name in spellings and parameter.kind != parameter.POSITIONAL_ONLY:
                    usual[name] = parameter.name
        return usual

    @cached_property
    def first(self) -> str | None:
        """The first parameter, which gets the text unless its name is that of a column or a parameter; else None."""
        first = next(iter(self._parameters), None)
        if first is None or "text" in self.usual or first.name in self.usual.values():
            return None
        free = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        return None if first.kind in free else first.name

    @cached_property
    def wanted(self) -> tuple[Wanted, ...]:
        """The parameters that columns and parameters of a program may go to, the first one among them."""
        free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
        usual = set(self.usual.values())
        return tuple(
            Wanted(parameter.name, parameter.default is parameter.empty)
            for parameter in self._parameters
            if parameter.kind not in free and parameter.name not in usual
        )

    @cached_property
    def parameters(self) -> Mapping[str, bool]:
        """The parameters that can be given by name, in their order, each with whether it has no default."""
        free = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return {one.name: one.default is one.empty for one in self._parameters if one.kind in free}

    def inputs(self, asks: Container[str] = ()) -> frozenset[str]:
        """Which of text, problem and row it is given, where `asks` go to parameters of these names."""
        text = {"text"} if self.first is not None and self.first not in asks else set()
        return frozenset({*self.usual, *text})

    async def __call__(
        self,
        rows: Sequence[Mapping[str, object]],
        clock: RowClock | None = None,
        given: Mapping[str, object] = MappingProxyType({}),
    ) -> list[Value]:
        """The values for rows, each a mapping of inputs. `given` are those that are the same for all.

        Raises FunctionError.

        A plain function is called in a thread of its own, by one row of the input at a time; an `async` one in the
        event loop that the program was called in, for all rows at once. `clock` is the row's, where it has one.
        """
        calls: Sequence[Mapping[str, object]] = [{**row, **given} for row in rows]
        check: Callable[[Any], Any] = self._checked
        if self.batched:
            calls = [{**{name: [row[name] for row in rows] for name in (rows[0] if rows else ())}, **given}]
            check = partial(self._checked_list, count=len(rows))
        try:
            results = await self._results(calls, check, clock or RowClock())
        except UserCodeError as error:
            raise FunctionError(f"Python function `{self.name}` failed: {error}") from error.__cause__
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
        keywords = {self.usual.get(name, name): value for name, value in inputs.items()}
        if "text" in self.usual or "text" not in keywords:
            return self.call(**keywords)
        return self.call(keywords.pop("text"), **keywords)

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

    def _checked(self, value: Any, wanted: Type = "") -> Value | FunctionError:
        """The value as one of the language: of the type that the function gives, or that stands in it."""
        wanted = wanted or ("float" if self.kind == "scorer" else self.returns)
        if is_list(wanted) or is_record(wanted) or isinstance(value, list | tuple | Mapping):
            return self._compound(value, wanted)
        if not isinstance(value, (str, bool, int, float)) and hasattr(value, "item"):
            value = value.item()
        if value is None and self.kind != "scorer":
            return None
        if wanted == "unknown":
            wanted = next((name for name, plain in _TYPES.items() if type(value) is plain), "text")
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

    def _compound(self, value: Any, wanted: Type) -> Value | FunctionError:
        """A list, or a record: a dataclass, a pydantic model or a mapping."""
        if hasattr(value, "tolist"):
            value = value.tolist()
        if callable(dump := getattr(value, "model_dump", None)):
            value = dump()
        elif is_dataclass(value) and not isinstance(value, type):
            value = {field.name: getattr(value, field.name) for field in fields(value)}
        types, listed = fields_of(wanted), isinstance(value, list | tuple)
        if value is None and self.kind != "scorer":
            return None
        fits = wanted == "unknown" or (is_list(wanted) if listed else is_record(wanted))
        if not fits or not (listed or (isinstance(value, Mapping) and value.keys() <= (types or value).keys())):
            return self._refusal(f"{self.returns} or None", value)
        named: Iterable[tuple[Any, Any]] = enumerate(value) if listed else value.items()
        parts: dict[Any, Value] = {}
        for name, part in named:
            checked = self._checked(part, item_of(wanted) if listed else (types or {}).get(name, "unknown"))
            if isinstance(checked, FunctionError):
                return checked
            parts[name] = checked
        return tuple(parts.values()) if listed else Record({str(name): part for name, part in parts.items()})

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

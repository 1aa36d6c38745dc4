"""Python functions that a caller registered: scorers and extractors, by row or by batch, sync or async."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from typing import Literal as OneOf

from qpdsl.executor.runtime.instance.tasks import together
from qpdsl.planner.plan.evaluate import Value

# What a function can ask for by the names of its parameters; a batched one may use the plural.
_INPUTS = ("text", "problem", "row")

_TYPES: Mapping[str, type[str | int | float | bool]] = {"text": str, "int": int, "float": float, "bool": bool}


class FunctionError(Exception):
    """A registered function failed, or returned what it must not; the message names it and says why."""


@dataclass(frozen=True)
class PythonFunction:
    """A `scorer` returns a number for a row; an `extractor` a value of the column type `returns`, or None.

    `call` gets the row's text, and what else its parameters name: `problem`, and `row`, the columns. A `batched`
    function gets a list of each for all rows, and returns a list. It may be async.
    """

    name: str
    call: Callable[..., Any]
    batched: bool = False
    kind: OneOf["scorer", "extractor"] = "scorer"
    returns: str = "text"

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

    async def __call__(self, rows: Sequence[Mapping[str, object]]) -> list[Value]:
        """The values for rows, each a mapping of inputs. Raises FunctionError."""
        if not self.batched:
            return [self._checked(value) for value in await together(self._call(row) for row in rows)]
        values = await self._call({name: [row[name] for row in rows] for name in self.inputs})
        if not isinstance(values, Sequence) and hasattr(values, "tolist"):
            values = values.tolist()
        if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != len(rows):
            what = f"{len(values)} values" if isinstance(values, (list, tuple)) else f"{type(values).__name__}"
            raise FunctionError(f"Python function `{self.name}` must give a list of {len(rows)}, not {what}")
        return [self._checked(value) for value in values]

    async def _call(self, inputs: Mapping[str, object]) -> Any:
        positional = [inputs[name] for name, parameter in self.inputs.items() if parameter is None]
        keywords = {parameter: inputs[name] for name, parameter in self.inputs.items() if parameter is not None}
        try:
            value = self.call(*positional, **keywords)
            return await value if inspect.isawaitable(value) else value
        except Exception as error:  # a user's function may raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":")
            raise FunctionError(f"Python function `{self.name}` failed: {reason}{_line(error)}") from error

    def _checked(self, value: Any) -> Value:
        if not isinstance(value, (str, bool, int, float)) and hasattr(value, "item"):
            value = value.item()
        if self.kind == "scorer":
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
                return value
            raise FunctionError(f"Python scorer `{self.name}` must give a number, not {_described(value)}")
        if value is None:
            return None
        if self.returns == "float" and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if type(value) is _TYPES[self.returns]:
            return value
        raise FunctionError(f"Python extractor `{self.name}` must give {self.returns} or None, not {_described(value)}")


def _line(error: Exception) -> str:
    """Where the error was raised: the innermost line of the file that the function stands in."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    in_file = [frame for frame in frames if frame.filename == frames[0].filename]
    return f" ({Path(in_file[-1].filename).name}, line {in_file[-1].lineno})" if in_file else ""


def _described(value: object) -> str:
    if value is None or isinstance(value, (bool, int, float)):
        return str(value)
    return f"a {type(value).__name__}"

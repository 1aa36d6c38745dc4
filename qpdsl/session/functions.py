"""Python functions that programs use: scorers, extractors and tools.

The names of a function's parameters say what it gets of a row: `text`, `problem`, `row` (all columns), or a column or a
parameter of the program. A first parameter of any other name gets the text. With `rows="all"` the function gets lists
with an entry for each row of the stage, and returns a list; what is a parameter of the program it gets as it is. It may
be `async`.

A function is taken to depend on what it is given and on nothing else: it is called once for equal rows of a problem.
One of all rows may compare them, so it gets all of them in every round; with `rows="batch"` it says that it does not.

A tool is called with arguments that a program or a model writes, for each row by itself; see
`qpdsl/executor/runtime/instance/tools.py`.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import types
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import update_wrapper
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, Union, final, get_args, get_origin, overload

from qpdsl.errors import UsageError, naming_keywords, reason
from qpdsl.executor.runtime.instance.functions import PythonFunction, Rows
from qpdsl.executor.runtime.instance.tools import CallableTool, Care
from qpdsl.grammar.suggest import listed
from qpdsl.grammar.words import RESERVED

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_COLUMN_TYPES = {str: "text", int: "int", float: "float", bool: "bool"}


class Registered(Generic[P, R]):
    """A registered function. Calling it calls the function itself."""

    __name__: str

    def __init__(self, call: Callable[P, R], function: PythonFunction) -> None:
        self._call = call
        self.function = function
        update_wrapper(self, call, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._call(*args, **kwargs)


@final
class Scorer(Registered[P, R]):
    """A scorer: `rows.score(…)` takes it, and `score NAME` in a `.qp` file that it is given to."""


@final
class Extractor(Registered[P, R], Generic[P, R, T]):
    """An extractor of values of type T: `rows.extract(…)` takes it, and `extract COLUMN = NAME` in a `.qp` file."""


@final
class RegisteredTool(Registered[P, R]):
    """A tool: `rows.tool(…)` and `qp.call(…)` take it, and `tool NAME(…)` in a `.qp` file that it is given to."""


class ExtractorOfRows(Protocol):
    """A decorator for extractors that are given one row at a time."""

    @overload
    def __call__(self, call: Callable[P, Awaitable[T | None]], /) -> Extractor[P, Awaitable[T | None], T]: ...
    @overload
    def __call__(self, call: Callable[P, T | None], /) -> Extractor[P, T | None, T]: ...


class ExtractorOfBatches(Protocol):
    """A decorator for extractors that are given all rows of a stage at once."""

    @overload
    def __call__(
        self, call: Callable[P, Awaitable[Sequence[T | None]]], /
    ) -> Extractor[P, Awaitable[Sequence[T | None]], T]: ...
    @overload
    def __call__(self, call: Callable[P, Sequence[T | None]], /) -> Extractor[P, Sequence[T | None], T]: ...


@overload
def scorer(call: Callable[P, R], /) -> Scorer[P, R]: ...
@overload
def scorer(*, rows: Rows = "one", name: str | None = None) -> Callable[[Callable[P, R]], Scorer[P, R]]: ...
@naming_keywords
def scorer(call: Any = None, /, *, rows: Rows = "one", name: str | None = None) -> Any:
    """Registers a function that gives a number for a row.

    `rows`: see the top of the module. Raises UsageError.
    """

    def register(call: Callable[P, R]) -> Scorer[P, R]:
        return Scorer(call, _checked(PythonFunction(_name(call, name), call, rows, "scorer")))

    return register if call is None else register(call)


@overload
def extractor(call: Callable[P, Awaitable[T | None]], /) -> Extractor[P, Awaitable[T | None], T]: ...
@overload
def extractor(call: Callable[P, T | None], /) -> Extractor[P, T | None, T]: ...
@overload
def extractor(*, rows: Literal["one"] = "one", name: str | None = None) -> ExtractorOfRows: ...
@overload
def extractor(*, rows: Literal["all", "batch"], name: str | None = None) -> ExtractorOfBatches: ...
@naming_keywords
def extractor(call: Any = None, /, *, rows: Rows = "one", name: str | None = None) -> Any:
    """Registers a function that gives a row a value, or None; its return annotation says the type, by default text.

    `rows`: see the top of the module. Raises UsageError.
    """

    def register(call: Callable[..., Any]) -> Extractor[..., Any, Any]:
        returns = _returned(call, rows != "one")
        return Extractor(call, _checked(PythonFunction(_name(call, name), call, rows, "extractor", returns)))

    return register if call is None else register(call)


@overload
def tool(call: Callable[P, R], /) -> RegisteredTool[P, R]: ...
@overload
def tool(
    *, pure: bool = False, effects: bool = False, name: str | None = None, description: str | None = None
) -> Callable[[Callable[P, R]], RegisteredTool[P, R]]: ...
@naming_keywords
def tool(
    call: Any = None,
    /,
    *,
    pure: bool = False,
    effects: bool = False,
    name: str | None = None,
    description: str | None = None,
) -> Any:
    """Registers a typed function as a tool: its parameters are the arguments, its docstring says what it does.

    A `pure` one gives the same for the same arguments, so equal calls are made once. One with `effects` changes the
    world: it is never called twice for one place of a run, whatever interrupts that. Raises UsageError.
    """
    if pure and effects:
        raise UsageError("a tool with effects is not pure", "say one of them")
    care: Care = "pure" if pure else "effects" if effects else "usual"

    def register(call: Callable[P, R]) -> RegisteredTool[P, R]:
        return RegisteredTool(call, tool_of(call, name, description, care))

    return register if call is None else register(call)


def tool_of(
    call: Callable[..., Any], name: str | None = None, description: str | None = None, care: Care = "usual"
) -> CallableTool:
    """A typed function as a tool. Raises UsageError where its arguments have no JSON Schema."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter, validate_call

    name = _name(call, name)
    if inspect.isclass(call) or inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        what = "class" if inspect.isclass(call) else "generator"
        raise UsageError(f"tool `{name}` is a {what}", "write a function that returns a value")
    try:
        checked = validate_call(config=ConfigDict(arbitrary_types_allowed=False))(call)
        described: Any = call
        schema = arguments_schema(TypeAdapter(described).json_schema())
    except (PydanticUserError, NameError, TypeError) as error:
        why = " ".join(str(error).splitlines()[0].split())
        raise UsageError(f"tool `{name}`: its arguments have no schema: {why}", "annotate its parameters") from error
    said = inspect.cleandoc(call.__doc__ or "") if description is None else description
    returned = inspect.get_annotations(call).get("return", inspect.Parameter.empty)
    returns = "unknown" if returned in (Any, "Any", inspect.Parameter.empty) else _returned(call, False, "tool")
    return CallableTool(name, checked, "one", "tool", returns, schema=schema, description=said, care=care)


def arguments_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments, without titles. Raises TypeError where it is none of an object."""
    from qpdsl.planner.names.json_schema import closed

    if schema.get("type") != "object" or "patternProperties" in schema:
        raise TypeError("each needs a name")
    made: dict[str, Any] = _untitled(closed({"properties": {}, **schema, "additionalProperties": False}))
    return made


def _untitled(value: Any) -> Any:
    """A schema without the titles that pydantic makes of names."""
    if isinstance(value, list):
        return [_untitled(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    named = {key: part for key, part in value.items() if not (key == "title" and isinstance(part, str))}
    return {key: _untitled(part) for key, part in named.items()}


def load_tool(path: str | Path, function: str, name: str) -> CallableTool:
    """A function of a Python file, decorated or not, as the tool `name`.

    Raises UsageError, and whatever the file itself raises.
    """
    value = getattr(_module(Path(path)), function, None)
    if isinstance(value, Registered):
        if isinstance(value.function, CallableTool):
            return replace(value.function, name=_name(value, name))
        raise UsageError(f"`{function}` of `{path}` is a {value.function.kind}, and no tool")
    if not callable(value):
        raise UsageError(f"`{path}` has no function `{function}`")
    return tool_of(value, name)


def load_functions(path: str | Path) -> tuple[PythonFunction, ...]:
    """Runs a Python file, and returns its scorers, extractors and tools in order.

    Raises UsageError, and whatever the file itself raises.
    """
    module = _module(Path(path))
    return tuple(by_name(value for value in vars(module).values() if isinstance(value, Registered)).values())


def _module(file: Path) -> types.ModuleType:
    """A Python file that is run. Raises UsageError, and whatever the file itself raises."""
    if not file.is_file():
        raise UsageError(f"there is no Python file `{file}`")
    name = f"qpdsl_functions_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"`{file}` is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except OSError as error:
        raise UsageError(f"cannot read `{file}`: {reason(error)}") from error
    return module


def by_name(functions: Iterable[Registered[..., Any] | PythonFunction]) -> dict[str, PythonFunction]:
    """The functions by name. Raises UsageError where two have one name."""
    named: dict[str, PythonFunction] = {}
    for registered in functions:
        function = registered.function if isinstance(registered, Registered) else registered
        if named.setdefault(function.name, function) is not function:
            raise UsageError(f"two functions are called `{function.name}`", "give one another name: `name=…`")
    return named


def _name(call: Callable[..., Any], name: str | None) -> str:
    name = str(getattr(call, "__name__", type(call).__name__)) if name is None else name
    if not name.isidentifier() or not name.isascii() or name in RESERVED:
        raise UsageError(f"`{name}` cannot be the name of a function in a program", "give it one: `name=…`")
    return name


def _checked(function: PythonFunction) -> PythonFunction:
    if function.rows not in get_args(Rows):
        kinds = f"`rows` of {function.kind} `{function.name}` is {listed(get_args(Rows))}"
        raise UsageError(kinds, 'a function of one row at a time needs no `rows`; one that compares rows takes "all"')
    return function


def _returned(call: Callable[..., Any], batched: bool, kind: str = "extractor") -> str:
    """The column type that a function's annotation names."""
    annotation = inspect.get_annotations(call).get("return")
    if isinstance(annotation, str):
        annotation = evaluated(annotation, getattr(call, "__globals__", {}))
    if annotation is None:
        return "text"
    items = get_args(annotation) if batched else ()
    value_type = without_none(items[0] if items else annotation)
    if value_type in _COLUMN_TYPES:
        return _COLUMN_TYPES[value_type]
    type_ = _compound_type(value_type)
    if not type_.startswith(("[", "{", "record")):
        message = f"{kind} `{call.__name__}` gives {annotation}; a column holds `str`, `int`, `float`, `bool`, "
        help = "annotate what it returns with one of them" + (" in a `list[…]`" if batched else "")
        raise UsageError(f"{message}lists and records", help)
    return type_


def _compound_type(annotation: Any) -> str:
    """The type of a list, a dataclass, a `TypedDict` or a pydantic model; another type for what is none of these."""
    from pydantic import PydanticUserError, TypeAdapter

    from qpdsl.planner.names.json_schema import closed, value_type

    try:
        return value_type(closed(TypeAdapter(annotation).json_schema()))
    except PydanticUserError as error:
        why = str(error).splitlines()[0]
        raise UsageError(f"what a function returns is read by its annotation, {annotation}: {why}") from error
    except (NameError, TypeError, ValueError):
        return "unknown"


def evaluated(annotation: str, scope: dict[str, Any]) -> Any:
    """The value of an annotation that is text. Raises UsageError where a name in it is not known."""
    try:
        return eval(annotation, scope)
    except NameError as error:
        raise UsageError(f"the annotation `{annotation}` names `{error.name}`, which is not known here") from error


def without_none(annotation: Any) -> Any:
    """The type `T` of an annotation `T | None`; any other annotation as it is."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    return Union[tuple(item for item in get_args(annotation) if item is not type(None))]  # noqa: UP007

"""Tools that a caller hands in, and their calls: side by side, within limits, and none made twice.

What a tool raises is a value too: the program goes on with a text that says so. A call is known by the tool, its
arguments and, unless the tool is pure, its place in the run, so that a run that is resumed, or a row of it that runs
again, finds it kept. A call that failed is made again there. A tool with effects is noted before it is called, and
never called again, whatever came of that.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, Protocol

from qpdsl.executor.runtime.instance.functions import FunctionError, PythonFunction
from qpdsl.executor.runtime.instance.row_tasks import RowClock
from qpdsl.executor.runtime.instance.user_code import UserCodeError, in_loop, in_thread, named
from qpdsl.planner.values.value import Value, frozen, thawed

# What may be done with a call: it may be shared among equal calls; or it changes the world.
Care = Literal["usual", "pure", "effects"]
# So long, as JSON, and so deep is what a tool gives, at most: all of it is shown to a model.
_MAX_CHARACTERS, _MAX_DEPTH = 1_000_000, 64
_TOO_DEEP = f"is nested more than {_MAX_DEPTH} deep"
_LOST = "it was called before this run was interrupted, and nobody knows what came of that; it is not called again"


class ToolFailed(Exception):
    """A tool failed; the message is what a model is told."""


class ToolAnswer(NamedTuple):
    """What a tool gives; where it `failed`, a text that says why."""

    value: Value
    failed: bool = False

    @classmethod
    def error(cls, why: object) -> ToolAnswer:
        return cls(f"error: {why}", failed=True)


@dataclass(frozen=True)
class CallableTool(PythonFunction):
    """A tool: `call` takes the arguments of its `schema`, a JSON Schema of an object, by their names.

    It gives a value of the column type `returns`. `source` tells it from another one of its name.
    """

    kind: Literal["scorer", "extractor", "tool"] = "tool"
    schema: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""
    care: Care = "usual"
    source: str = ""

    async def answer(self, arguments: Mapping[str, Value], seconds: float | None, clock: RowClock) -> ToolAnswer:
        """What it gives, or why it gives nothing. It never raises, but where the caller is cancelled."""
        given = {name: thawed(value) for name, value in arguments.items()}
        try:
            async with asyncio.timeout(seconds):
                value = await self._result(given, clock)
        except TimeoutError:
            return ToolAnswer.error(f"`{self.name}` took more than {seconds:g} s")
        except UserCodeError as error:
            cause = error.__cause__
            return ToolAnswer.error(error if cause is None else _said(cause))
        return ToolAnswer.error(value) if isinstance(value, FunctionError) else ToolAnswer(value)

    async def _result(self, arguments: Mapping[str, Any], clock: RowClock) -> Value | FunctionError:
        work = partial(self.call, **arguments)
        if self._is_async:
            value = await in_loop(work, clock)
        else:
            value = await in_thread(self.name, work)
            value = await in_loop(lambda: value, clock) if inspect.isawaitable(value) else value
        try:
            checked = self._checked(value)
            why = None if isinstance(checked, FunctionError) else _too_much(checked)
        except RecursionError:
            why = _TOO_DEEP
        except Exception as error:  # a value of the user's own may raise anything when it is looked at
            why = f"cannot be read: {named(error)}"
        return checked if why is None else FunctionError(f"what `{self.name}` gives {why}")


class CallStore(Protocol):
    """What keeps the calls of a run, by key."""

    def call(self, key: str) -> str | None:
        """What came of a call, empty where it was begun; None where it was not."""

    def keep_call(self, key: str, answer: str) -> None:
        """Keeps what came of a call, or that it was begun: when this returns, nothing undoes it."""


class CallPlace(NamedTuple):
    """Where in a run a call is made: the row of the input, the seed, the stage, the rounds around it, the path.

    `number` is that of the call in its message.
    """

    instance: str
    seed: int
    stage: int
    rounds: tuple[int, ...]
    path: tuple[int, ...]
    number: int = 0


@dataclass
class ToolCalls:
    """The calls of all that one session runs. Those of pure tools are shared."""

    _known: dict[str, Value] = field(default_factory=dict)
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    _limits: dict[tuple[str, int, int], asyncio.Semaphore] = field(default_factory=dict)

    async def result(
        self,
        tool: CallableTool,
        arguments: Mapping[str, Value],
        place: CallPlace,
        store: CallStore | None,
        *,
        seconds: float | None = None,
        at_most: int | None = None,
        clock: RowClock,
    ) -> tuple[ToolAnswer, bool]:
        """What a call gives, and whether it was made now and not known already."""
        key = call_key(tool, arguments, place)
        if tool.care != "pure":
            return await self._made(tool, arguments, key, store, place.stage, seconds, at_most, clock)
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            if key in self._known:
                return ToolAnswer(self._known[key]), False
            answer, made = await self._made(tool, arguments, key, store, place.stage, seconds, at_most, clock)
            if not answer.failed:
                self._known[key] = answer.value
            return answer, made

    async def _made(
        self,
        tool: CallableTool,
        arguments: Mapping[str, Value],
        key: str,
        store: CallStore | None,
        stage: int,
        seconds: float | None,
        at_most: int | None,
        clock: RowClock,
    ) -> tuple[ToolAnswer, bool]:
        kept = None if store is None else store.call(key)
        if kept:
            value, failed = json.loads(kept)
            return ToolAnswer(frozen(value), failed), False
        if kept is not None and tool.care == "effects":
            return ToolAnswer.error(_LOST), False
        limit = None
        if at_most is not None:
            limit = self._limits.setdefault((tool.name, stage, at_most), asyncio.Semaphore(at_most))
            with clock.paused():
                await limit.acquire()
        try:
            if store is not None and tool.care == "effects":
                store.keep_call(key, "")
            answer = await tool.answer(arguments, seconds, clock)
        finally:
            if limit is not None:
                limit.release()
        if store is not None and (tool.care == "effects" or not answer.failed):
            store.keep_call(key, json.dumps([thawed(answer.value), answer.failed]))
        return answer, True


def call_key(tool: CallableTool, arguments: Mapping[str, Value], place: CallPlace) -> str:
    """What tells a call from others: the tool and its arguments, and of a tool that is not pure the place."""
    where = [] if tool.care == "pure" else list(place)
    asked = [tool.name, tool.source, {name: thawed(arguments[name]) for name in sorted(arguments)}, where]
    return blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=16).hexdigest()


def _too_much(value: Value) -> str | None:
    """Why what a tool gives cannot be taken: it is too long, or too deep."""
    left, level = _MAX_CHARACTERS, [value]
    for _ in range(_MAX_DEPTH):
        left -= sum(len(part) if isinstance(part, str) else 1 for part in level)
        if left < 0:
            return f"has more than {_MAX_CHARACTERS:,} characters"
        level = [inner for part in level for inner in _parts(part)]
        if not level:
            return None
    return _TOO_DEEP


def _parts(value: Value) -> Iterable[Value]:
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    return value if isinstance(value, tuple) else ()


def _said(error: BaseException) -> str:
    """What was raised, for a model to read: of arguments that do not fit, which and why."""
    faults = getattr(error, "errors", None)
    if type(error).__name__ == "ValidationError" and callable(faults):
        return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults())
    return str(error) if isinstance(error, ToolFailed) else named(error)

"""Errors of the user's side, raised where the user called: without the frames of what found them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from qpdsl.api.results import RunError
from qpdsl.arguments import ArgumentError
from qpdsl.errors import UserError
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.grammar.diagnostic import QpError

C = TypeVar("C", bound=Callable[..., Any])
_PLAIN = (ArgumentError, ModelError, QpError, RunError, UserError)


def in_one_frame(function: C) -> C:
    """The function, whose errors that say all in their message have the caller's frames and one more."""

    @wraps(function)
    def called(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except _PLAIN as error:
            raise error.with_traceback(None)  # noqa: B904

    @wraps(function)
    async def awaited(*args: Any, **keywords: Any) -> Any:
        try:
            return await function(*args, **keywords)
        except _PLAIN as error:
            raise error.with_traceback(None)  # noqa: B904

    return cast(C, awaited if iscoroutinefunction(function) else called)

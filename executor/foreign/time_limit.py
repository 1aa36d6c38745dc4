"""A limit for Python code of a checkpoint that may never end: a chat template."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class TookTooLong(Exception):
    """The time of a function is over."""


def within(seconds: float, function: Callable[[], T]) -> T:
    """What a function returns, or raises. Raises TookTooLong, and then ends its thread at its next step in Python."""
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="qpdsl-template", daemon=True)
    thread.start()
    try:
        thread.join(seconds)
    finally:
        if thread.is_alive():
            _end(thread)
    if result:
        return result[0]
    if failure and not isinstance(failure[0], TookTooLong):
        raise failure[0]
    raise TookTooLong


def _end(thread: threading.Thread) -> None:
    raised: Any = ctypes.py_object(TookTooLong)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), raised)

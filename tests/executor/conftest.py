"""Triton's interpreter, without what it does again at every call of a device function."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def _quick_interpreter() -> None:
    """Has a launch replace the operators that the functions of a module see once, and not at each of their calls.

    Searching `triton.language` for them takes longer than most device functions.
    """
    if os.environ.get("TRITON_INTERPRET") != "1" or importlib.util.find_spec("triton") is None:
        return
    from triton.runtime.interpreter import GridExecutor, InterpretedFunction

    launch, call = GridExecutor.__call__, InterpretedFunction.__call__
    replaced: set[int] = set()

    def launch_afresh(self: Any, *args: Any, **named: Any) -> None:
        replaced.clear()
        launch(self, *args, **named)

    def call_quickly(self: Any, *args: Any, **named: Any) -> Any:
        module = id(self.fn.__globals__)
        if module in replaced:
            return self.rewrite()(*args, **named)
        replaced.add(module)
        return call(self, *args, **named)

    GridExecutor.__call__, InterpretedFunction.__call__ = launch_afresh, call_quickly

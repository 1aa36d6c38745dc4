"""The settings of a session, and the checks of their values."""

from __future__ import annotations

import re

from qpdsl.arguments import ArgumentError, json_text
from qpdsl.errors import shorten
from qpdsl.grammar.suggest import listed
from qpdsl.planner.plan.physical import KV_TYPES

DTYPES = ("float32", "bfloat16", "float16")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def check_device(device: object) -> None:
    """Raises ArgumentError unless the value names a device: `cpu`, `cuda` or `cuda:N`."""
    if not isinstance(device, str) or not _DEVICE.fullmatch(device):
        raise ArgumentError(f"`{shorten(str(device))}` is no device; there is `cpu`, `cuda` and `cuda:N`")


def check_types(dtype: str | None, kv_type: str | None) -> None:
    """Raises ArgumentError unless both are types that a session knows, or None."""
    for name, value, known in (("dtype", dtype, DTYPES), ("kv_type", kv_type, KV_TYPES)):
        if value is not None and value not in known:
            raise ArgumentError(f"`{name}` is one of {listed(known)}, not `{shorten(str(value))}`")


def check_memory(kv_bytes: int | str | None) -> None:
    """Raises ArgumentError unless the value is an amount of memory, in bytes or as text, or None."""
    if isinstance(kv_bytes, str):
        from qpdsl.executor.engine.memory.budget import parse

        try:
            parse(kv_bytes)
        except ValueError as error:
            raise ArgumentError(f"`kv_bytes`: {error}") from error
    elif kv_bytes is not None:
        check_whole("kv_bytes", kv_bytes, 1)


def check_whole(name: str, value: object, least: int | None = None) -> None:
    """Raises ArgumentError unless the value is a whole number, of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        of = "" if least is None else f" of at least {least}"
        raise ArgumentError(f"`{name}` takes a whole number{of}, not {json_text(value)}")

"""The settings of a session, and the checks of their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from qpdsl.arguments import ArgumentError, json_text
from qpdsl.errors import shorten
from qpdsl.grammar.suggest import listed
from qpdsl.planner.plan.physical import KV_TYPES
from qpdsl.remote.spending import Spending
from qpdsl.threads import cores

# About a year, in seconds.
LONGEST_TIMEOUT = 31_536_000
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


def check_sharing(device: str, dtype: str | None, *, deterministic: bool) -> None:
    """Raises ArgumentError where a sample may depend on what is computed beside it, so that none can be shared."""
    if deterministic or (device == "cpu" and dtype in (None, "float32")):
        return
    place = f"`{device}`" if device != "cpu" else f"`{device}` in `{dtype}`"
    help = "compute in float32 on the CPU, or with `deterministic`"
    raise ArgumentError(
        f"`share_samples` needs samples that are the same in any batch, and on {place} they are not; {help}"
    )


def check_memory(kv_bytes: int | str | None, device: str = "cpu") -> None:
    """Raises ArgumentError unless the value is an amount of memory, in bytes or as text, that the machine has, or None.

    What a GPU has is known only where it is used.
    """
    from qpdsl.executor.engine.memory.budget import amount_text, main_memory, parse

    if kv_bytes is None:
        return
    if not isinstance(kv_bytes, str):
        check_whole("kv_bytes", kv_bytes, 1)
    try:
        amount = parse(kv_bytes, main_memory)
    except ValueError as error:
        raise ArgumentError(f"`kv_bytes`: {error}") from error
    if device == "cpu" and amount > main_memory():
        there_is = f"there is {amount_text(main_memory())} for this process"
        raise ArgumentError(f"`kv_bytes` is more memory than there is: it asks for {amount_text(amount)}, {there_is}")


def check_spending(
    completions: str | Path | None,
    max_tokens_total: int | None,
    max_cost: float | None,
    prices: str | Path | None,
    server_timeout: float | None,
) -> Spending:
    """What a session may take of servers. Raises ArgumentError."""
    if max_tokens_total is not None:
        check_whole("max_tokens_total", max_tokens_total, 1)
    if max_cost is not None and (isinstance(max_cost, bool) or not isinstance(max_cost, int | float)):
        raise ArgumentError(f"`max_cost` takes a number above 0, not {shorten(str(max_cost))}")
    if server_timeout is not None:
        check_timeout(server_timeout, "server_timeout")
    known = {} if server_timeout is None else {"server_timeout": server_timeout}
    try:
        return Spending(completions, max_tokens_total, max_cost, prices, **known)
    except ValueError as error:
        raise ArgumentError(str(error)) from error


def check_router(router: object) -> None:
    """Raises ArgumentError unless the value names a router (see `Routing.named`), or is None."""
    from qpdsl.executor.requests.routing import Routing

    if router is None:
        return
    try:
        Routing.named(router if isinstance(router, str) else json_text(router))
    except ValueError as error:
        raise ArgumentError(f"`router`: {error}") from error


def check_shadow(share: object) -> None:
    """Raises ArgumentError unless the value is a share, from 0 to 1, or None."""
    if share is not None and (isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1):
        raise ArgumentError(f"`shadow` takes a share from 0 to 1, not {json_text(share)}")


def check_exit_heads(heads: object) -> None:
    """Raises ArgumentError unless the value has folders by the names of models, or is None."""
    if heads is None:
        return
    given = heads.items() if isinstance(heads, Mapping) else [(None, heads)]
    for name, folder in given:
        if not isinstance(name, str) or not isinstance(folder, (str, Path)) or not str(folder):
            form = '{"llm": "folder"}, or {"": "folder"} for all models'
            raise ArgumentError(f"`exit_heads` takes folders by the names of models, as {form}, not {heads!r:.60}")


def check_timeout(seconds: object, name: str = "row_timeout") -> None:
    """Raises ArgumentError unless the value of a setting is a time in seconds, above 0, or None."""
    if seconds is None:
        return
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds <= LONGEST_TIMEOUT:
        of = f"seconds, more than 0 and at most {LONGEST_TIMEOUT:,}"
        raise ArgumentError(f"`{name}` takes {of}, not {json_text(seconds)}")


def check_threads(threads: object) -> None:
    """Raises ArgumentError unless the value is a number of threads that the machine can run side by side, or None."""
    if threads is None:
        return
    check_whole("threads", threads, 1)
    assert isinstance(threads, int)
    if threads > cores():
        has = f"{cores()}, as many as this process has cores"
        raise ArgumentError(f"`threads` takes at most {has}, not {json_text(threads)}")


def check_whole(name: str, value: object, least: int | None = None) -> None:
    """Raises ArgumentError unless the value is a whole number, of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        of = "" if least is None else f" of at least {least}"
        raise ArgumentError(f"`{name}` takes a whole number{of}, not {json_text(value)}")

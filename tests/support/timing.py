"""Bounds on time that hold on a busy machine, and still fail for code that is too slow."""

from __future__ import annotations

import time
from collections.abc import Callable

REFERENCE_SECONDS = 0.008
"""What `_yardstick` takes on the machine that the bounds in tests were set on, with nothing else running."""

TRIES = 5


def _yardstick() -> float:
    """Seconds of processor time for a fixed piece of Python work."""
    start = time.thread_time()
    table: dict[int, str] = {}
    for number in range(20_000):
        table[number % 512] = f"{number}:{len(table)}"
    return time.thread_time() - start


def assert_quick(seconds: Callable[[], float], bound: float) -> None:
    """Asserts that `seconds()`, a measurement, is below `bound` in one of some tries.

    The bound grows with how slow the machine is just then. A cause outside the code, such as a neighbour on the same
    core, passes; code that is too slow is too slow each time.
    """
    seen = []
    for _ in range(TRIES):
        slower = max(1.0, _yardstick() / REFERENCE_SECONDS)
        taken = seconds()
        slower = max(slower, _yardstick() / REFERENCE_SECONDS)
        if taken < bound * slower:
            return
        seen.append(f"{taken:.3f} s of {bound * slower:.3f} s")
    raise AssertionError(f"too slow in each of {TRIES} tries: {', '.join(seen)}")


def cpu_seconds(work: Callable[[], object]) -> float:
    """Processor time that `work` takes in this thread."""
    start = time.thread_time()
    work()
    return time.thread_time() - start

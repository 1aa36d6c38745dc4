"""How many threads torch computes with."""

from __future__ import annotations

import os

# Up to so many parameters a step is too short to be worth sharing between threads.
_SMALL_MODEL = 30_000_000


def usual_threads(parameters: int) -> int | None:
    """The threads for models of at most so many parameters: one a core, and a single one for small models.

    None where the environment variable OMP_NUM_THREADS says how many.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return None
    return 1 if parameters <= _SMALL_MODEL else cores()


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

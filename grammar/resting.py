"""Work that makes many objects and few cycles, spared the cycle collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_resting() -> Iterator[None]:
    """Keeps the collector from walking a growing tree again and again: half the time that a large source takes."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def collector_seldom(objects: int = 20_000) -> Iterator[None]:
    """Has the collector come by only when so many more objects were made than let go.

    Searching keeps most of what it makes, and the collector would walk it every few steps.
    """
    before = gc.get_threshold()
    # Zero means never; whoever asked for fewer visits has them.
    if before[0] == 0 or before[0] >= objects:
        yield
        return
    gc.set_threshold(objects, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)

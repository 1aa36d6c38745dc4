"""Which texts are held out for evaluation. A hash of the text decides, so nobody needs a list of them."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, Protocol, TypeVar

Split = Literal["train", "held-out"]


class Task(Protocol):
    """Something to solve, identified by its text."""

    @property
    def text(self) -> str: ...


T = TypeVar("T", bound=Task)
K = TypeVar("K")


def held_out(text: str) -> bool:
    """Whether the task with this text is kept for evaluation: one in sixteen, by a hash of the text."""
    return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] % 16 == 0


def stream(make: Callable[[random.Random, K], T], kinds: Iterable[K], seed: str, split: Split) -> Iterator[T]:
    """An endless stream of tasks of one split, kinds evenly mixed; the same seed gives the same stream."""
    rng = random.Random(f"{seed} {split}")
    for kind in itertools.cycle(kinds):
        task = make(rng, kind)
        while held_out(task.text) != (split == "held-out"):
            task = make(rng, kind)
        yield task


def distinct(tasks: Iterable[T], count: int) -> list[T]:
    """The first `count` tasks with different texts."""
    by_text: dict[str, T] = {}
    for task in tasks:
        if len(by_text) == count:
            break
        by_text.setdefault(task.text, task)
    return list(by_text.values())

"""Which texts are kept for evaluation. A hash decides, so no list has to be carried and nobody can train on them."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, Protocol, TypeVar

Split = Literal["train", "held-out"]


class Task(Protocol):
    """Something to be solved, told by its text."""

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
    """The first `count` tasks of different texts."""
    found: dict[str, T] = {}
    for task in tasks:
        if len(found) == count:
            break
        found.setdefault(task.text, task)
    return list(found.values())

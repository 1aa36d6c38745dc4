"""Noise keys: which random numbers belong to which sample.

A key hashes everything that a sample depends on by its meaning, and nothing of how it is run: the seed, the program's
arguments, the source stage, the rounds of the loops around it, and the row path. The noise itself is Philox, under
this key, with a counter of the token id and the number of tokens drawn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b

from qpdsl.executor.events.events import Path, Rounds
from qpdsl.planner.plan.evaluate import Value


def hash_arguments(values: Sequence[Value]) -> bytes:
    """A digest of a program's arguments in the order of its parameters, whose names do not count."""
    return blake2b(json.dumps(list(values), ensure_ascii=True).encode(), digest_size=16).digest()


def noise_key(seed: int, arguments: bytes, stage: int, rounds: Rounds, path: Path) -> int:
    """The 64-bit key of one sample, as an unsigned integer."""
    text = f"{seed}|{stage}|{','.join(map(str, rounds))}|{','.join(map(str, path))}"
    return int.from_bytes(blake2b(arguments + text.encode(), digest_size=8).digest(), "little")

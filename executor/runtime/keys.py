"""Noise keys: which random numbers belong to which sample.

A key hashes everything that a sample's meaning depends on, and nothing of how it is run: the seed, the program's
arguments, the source stage, the rounds of the loops around it, and the row path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b

from qpdsl.planner.expr import Value

Rounds = tuple[int, ...]
Path = tuple[int, ...]


def hash_arguments(arguments: Mapping[str, Value]) -> bytes:
    """A digest of the arguments by name; their order does not count."""
    text = json.dumps(dict(arguments), sort_keys=True, ensure_ascii=True, allow_nan=True)
    return blake2b(text.encode(), digest_size=16).digest()


def noise_key(seed: int, arguments: bytes, stage: int, rounds: Rounds, path: Path) -> int:
    """The 64-bit key of one sample, as an unsigned integer."""
    text = f"{seed}|{stage}|{','.join(map(str, rounds))}|{','.join(map(str, path))}"
    return int.from_bytes(blake2b(arguments + text.encode(), digest_size=8).digest(), "little")

"""Noise keys: which random numbers belong to which sample.

A key hashes what the sample is by its meaning, and nothing of how it is run: the seed, the texts that the model is
shown before its own turn, which `generate` of the program it is, the rounds of the loops around it, and the row path.
What shapes the distribution (temperature, filters, masks) has no part in it, and neither has a width or an argument
that the model is not shown, so plans and settings that are compared share their random numbers. The noise itself is
Philox, under this key, with a counter of the token id and the number of tokens drawn.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING

from qpdsl.executor.events.events import Path, Rounds

if TYPE_CHECKING:
    from qpdsl.executor.text.context import Context

# The version of what a seed means. Results of another version cannot be repeated.
NOISE_VERSION = 2


def hash_context(context: Context) -> bytes:
    """A digest, of 16 bytes, of the roles and texts of a context. How a prompt is cut into pieces does not count."""
    texts = [context.turns, "".join(text for text, _ in context.prompt)]
    return blake2b(json.dumps(texts, ensure_ascii=True).encode(), digest_size=16).digest()


def noise_key(seed: int, context: bytes, ordinal: int, rounds: Rounds, path: Path) -> int:
    """The 64-bit key of one sample, as an unsigned integer.

    `context` is `hash_context` of the row's; `ordinal` numbers the program's `generate`s in reading order, from 0.
    """
    text = f"{seed}|{ordinal}|{','.join(map(str, rounds))}|{','.join(map(str, path))}"
    return int.from_bytes(blake2b(context + text.encode(), digest_size=8).digest(), "little")

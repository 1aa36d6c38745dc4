"""What tells requests to servers apart: the key of what was answered, and the seed that a sample is drawn by."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from qpdsl.executor.remote.server.address import Address

# Servers take seeds of at most 31 bits, or are said to.
_MOST_SEED = 2**31 - 1


def seed_of(key: int, drawn: int, largest: int) -> int:
    """The seed of a sample that has a noise key and `drawn` tokens already, from 1 to below `largest`.

    0 and the largest stand for a seed at random on some servers.
    """
    digest = blake2b(f"{key} {drawn}".encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "big") % (min(_MOST_SEED, largest) - 1)


def request_key(address: Address, version: str, path: str, body: Mapping[str, Any], more: Sequence[Any] = ()) -> bytes:
    """32 bytes that depend on all that an answer depends on.

    `body` is what is sent, without what asks for a stream; `more` is what decides beside it which answer it is.
    """
    parts = [address.dialect, address.url, version, path, body, list(more)]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return blake2b(text.encode(), digest_size=32).digest()

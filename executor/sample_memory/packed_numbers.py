"""Numbers as text, to the last bit."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Sequence


def packed(values: Sequence[float], kind: str | None = None) -> str:
    """In 32 bits where these hold all of them (`kind`: in any case), else in 64."""
    if kind is None:
        short = array("f", values)
        kind = "f" if list(short) == list(values) else "d"
    return kind + base64.b85encode(array(kind, values).tobytes()).decode()


def unpacked(text: str) -> list[float]:
    """What `packed` gave. Raises TypeError or ValueError for anything else."""
    if text[0] not in "fd":
        raise TypeError("numbers of no kind")
    values = array("f" if text[0] == "f" else "d")
    values.frombytes(base64.b85decode(text[1:]))
    return list(values)

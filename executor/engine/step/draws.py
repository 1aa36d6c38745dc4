"""The draws of a step: which sample draws from which row, under which noise, and from which ids."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.requests.request import Bits, Mask, SamplingParams


class Draw(NamedTuple):
    """One token to draw.

    `row`: of the hidden states that are read. `position`: how many tokens were drawn before under the key. `allowed`:
    the row of the masks' bits, -1 where every id may come. `sparse`: whether the head may compute the ids alone that
    the mask allows. `exit_margin`: as in a `GenerateRequest`.
    """

    row: int
    params: SamplingParams
    key: int
    position: int
    allowed: int = -1
    sparse: bool = False
    exit_margin: float | None = None


@dataclass(frozen=True, slots=True)
class Masks:
    """Which ids each draw under a mask may take: `bits` as in `Mask.fill`, and how many they are, int64 [rows].

    `first`: the first row of each sequence that has some, which has one for each row of its chunk that is read. A
    prompt that is to be forked has one for all its samples.
    """

    bits: Bits
    counts: np.ndarray[tuple[int], np.dtype[np.int64]]
    first: Mapping[Sequence, int]


class MaskFiller:
    """Asks the masks of a step, for a vocabulary of so many ids."""

    def __init__(self, vocabulary: int) -> None:
        self._words = -(-vocabulary // 32)

    def filled(self, chunks: Several[Chunk]) -> Masks | None:
        """What they allow, before the chunks are computed; None where nothing is masked."""
        masked = [chunk for chunk in chunks if chunk.sequence.mask is not None and chunk.read_rows]
        if not masked:
            return None
        bits = np.zeros((sum(len(chunk.read_rows) for chunk in masked), self._words), dtype=np.int32)
        by_class: dict[type[Mask], tuple[list[Mask], list[int]]] = {}
        first: dict[Sequence, int] = {}
        row = 0
        for chunk in masked:
            mask, rows = chunk.sequence.mask, len(chunk.read_rows)
            assert mask is not None
            first[chunk.sequence] = row
            masks, places = by_class.setdefault(type(mask), ([], []))
            masks.append(mask)
            places.append(row)
            if chunk.proposal is not None:
                mask.fill_ahead(chunk.proposal.paths, bits[row + 1 : row + rows])
            row += rows
        for masks, places in by_class.values():
            own = np.zeros((len(places), self._words), dtype=np.int32)
            masks[0].fill(masks, own)
            bits[places] = own
        return Masks(bits, np.bitwise_count(bits.view(np.uint32)).sum(axis=1, dtype=np.int64), first)

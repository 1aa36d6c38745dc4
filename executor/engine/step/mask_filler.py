"""The masks of a step: filled while the forward runs, since they depend on tokens that are known before it."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Several
from types import TracebackType
from typing import NamedTuple

import numpy as np

from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.engine.step.draws import Masks
from qpdsl.executor.engine.step.side_thread import SIDE_THREAD, Job
from qpdsl.executor.requests.request import Mask

# To hand work to a thread and take it back costs up to so many seconds: what takes less is done at once.
_HAND_OVER = 1e-4
# By how much the seconds of earlier steps are forgotten at each.
_FORGETTING = 0.1


class MaskFiller:
    """Asks the masks of a step, for a vocabulary of so many ids."""

    def __init__(self, vocabulary: int) -> None:
        self._words = -(-vocabulary // 32)
        self._row_seconds = 0.0

    def begin(self, chunks: Several[Chunk], *, launches: bool = False) -> Filling:
        """Begins to fill them, before the chunks are computed.

        By what a row took lately, it is done beside the forward, or at once where that is quicker. Where a forward only
        `launches` what a device then computes, few are filled when they are asked for, which is under that forward.
        """
        filling = Filling(chunks, self._words, self._took)
        if filling.rows * self._row_seconds >= _HAND_OVER:
            SIDE_THREAD.begin(filling.job)
        elif not launches:
            filling.masks()
        return filling

    def _took(self, seconds: float, rows: int) -> None:
        self._row_seconds += _FORGETTING * (seconds / rows - self._row_seconds)


class _Part(NamedTuple):
    """A mask of the step: its sequence has a row for its tokens, and one more after each of `paths`."""

    sequence: Sequence
    mask: Mask
    paths: list[tuple[int, ...]]


class Filling:
    """The masks of one step, maybe under way. As a context, it leaves nobody at work on them behind an exception.

    `took` is told how many seconds how many rows took. `waited` are the seconds that the step stood still for them.
    """

    def __init__(self, chunks: Several[Chunk], words: int, took: Callable[[float, int], None]) -> None:
        self._words = words
        self._took = took
        self._masks: Masks | None = None
        # What a chunk reads is asked now: its sequence goes on while the job runs.
        self._parts: dict[type[Mask], list[_Part]] = {}
        self.rows = 0
        for chunk in chunks:
            mask = chunk.sequence.mask
            if mask is not None and chunk.read_rows:
                paths = [] if chunk.proposal is None else chunk.proposal.paths
                self._parts.setdefault(type(mask), []).append(_Part(chunk.sequence, mask, paths))
                self.rows += 1 + len(paths)
        self.job = Job(self._fill)
        self.waited = 0.0

    def __enter__(self) -> Filling:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self.job.cancel()

    def masks(self) -> Masks | None:
        """What they allow, as soon as it is known; None where nothing is masked."""
        if self._parts and self._masks is None:
            start = time.perf_counter()
            self.job.wait()
            self.waited += time.perf_counter() - start
        return self._masks

    def _fill(self) -> None:
        start = time.perf_counter()
        bits = np.zeros((self.rows, self._words), dtype=np.int32)
        first: dict[Sequence, int] = {}
        row = 0
        for parts in self._parts.values():
            masks, start_row = [part.mask for part in parts], row
            for part in parts:
                first[part.sequence] = row
                row += 1 + len(part.paths)
            if row - start_row == len(parts):
                masks[0].fill(masks, bits[start_row:row])
            else:
                masks[0].fill_ahead(masks, [part.paths for part in parts], bits[start_row:row])
        counts = np.bitwise_count(bits.view(np.uint32)).sum(axis=1, dtype=np.int64)
        if self.rows > len(first):
            # Nobody will draw behind a token that cannot come, but a draw needs something to choose from.
            behind = np.ones(self.rows, dtype=bool)
            behind[list(first.values())] = False
            behind &= counts == 0
            bits[behind, 0], counts[behind] = 1, 1
        self._masks = Masks(bits, counts, first)
        self._took(time.perf_counter() - start, self.rows)

"""Where the residuals of late tokens wait: slabs of the arena, so that the KV budget holds them too."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpdsl.executor.engine.memory.kv_cache import Arena
from qpdsl.executor.engine.memory.prefix_tree import Reclaimer
from qpdsl.executor.engine.memory.sequence import Sequence

Rows = np.ndarray[Any, np.dtype[np.float32]]


class Residuals:
    """Those of one model, float32 [d] each, in the slabs that it leases for them on a CPU.

    A slab goes back to the arena with the last of its residuals. Where none is to be had, a residual has memory of its
    own until the layers that were put off have run, which is to be in the same step or the sequence's next.
    """

    def __init__(self, arena: Arena, reclaimer: Reclaimer, model: str) -> None:
        self._arena = arena
        self._reclaimer = reclaimer
        self._owner = f"{model}: late tokens"
        # The rows of a slab that are free, by the slab's number; and which rows a sequence has.
        self._free: dict[int, list[int]] = {}
        self._rows: dict[Sequence, list[tuple[int, int]]] = {}
        self._outside: set[Sequence] = set()
        self._slab_rows = 0

    @property
    def leased_bytes(self) -> int:
        return len(self._free) * self._arena.slab_bytes

    def keep(self, sequence: Sequence, rows: Rows) -> bool:
        """Puts off the layers of a sequence's next tokens, whose residuals are `rows` [n, d].

        False where they, or earlier ones, have memory of their own: then the layers are not to be put off any more.
        """
        sequence.release = self.release
        self._slab_rows = self._arena.slab_bytes // rows[0].nbytes
        for row in rows:
            place = None if sequence in self._outside else self._place()
            if place is None:
                self._outside.add(sequence)
                sequence.defer(row[None].copy())
                continue
            self._rows.setdefault(sequence, []).append(place)
            kept = self._view(*place, row.shape[0])
            kept[0] = row
            sequence.defer(kept)
        return sequence not in self._outside

    def release(self, sequence: Sequence) -> None:
        """Frees what a sequence has."""
        self._outside.discard(sequence)
        for slab, row in self._rows.pop(sequence, ()):
            self._free[slab].append(row)
            if len(self._free[slab]) == self._slab_rows:
                del self._free[slab]
                self._arena.give_back(slab)

    def give_back(self) -> bool:
        """Gives all slabs back: what waits gets memory of its own, and pages need them. False where there were none."""
        moved = list(self._rows)
        for sequence in moved:
            sequence.deferred = [rows.copy() for rows in sequence.deferred]
            self.release(sequence)
        self._outside.update(moved)
        return bool(moved)

    def _place(self) -> tuple[int, int] | None:
        """A slab and a row of it that is free from now on; None where there is no slab."""
        slab = next((slab for slab, rows in self._free.items() if rows), None)
        if slab is None:
            if not self._slab_rows or not self._reclaimer.free_slab():
                return None
            slab = self._arena.lease(self._owner)
            self._free[slab] = list(range(self._slab_rows - 1, -1, -1))
        return slab, self._free[slab].pop()

    def _view(self, slab: int, row: int, width: int) -> Rows:
        start = slab * self._arena.slab_bytes + row * 4 * width
        kept: Rows = self._arena.buffer[start : start + 4 * width].numpy().view(np.float32)[None]
        return kept

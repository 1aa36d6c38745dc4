"""One byte buffer for the KV of all models, cut into slabs that their pools lease.

Memory moves between models as their needs change, with no fixed split (as in Prism and eLLM, here for a generator and
its verifier).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from qpdsl.executor.engine.memory.budget import amount_text
from qpdsl.executor.engine.memory.kv_cache import KVLayout
from qpdsl.executor.requests.errors import EngineError

_CANDIDATES = 512
_LARGEST_SLAB_PAGES = 256
# The share of the budget below which a smaller slab gains nothing.
_SMALLEST_SHARE = 1 / 1024


class Arena:
    """`slabs` slabs of `slab_bytes` bytes in `buffer`, uint8 [slabs * slab_bytes].

    Raises EngineError where the system does not give the memory.
    """

    def __init__(self, budget: int, slab_bytes: int, device: str = "cpu") -> None:
        self.slab_bytes = slab_bytes
        self.slabs = budget // slab_bytes
        self.buffer = _zeros(self.slabs * slab_bytes, device)
        self._free = list(range(self.slabs - 1, -1, -1))
        self._owners: list[str | None] = [None] * self.slabs
        self._last_owners: list[str | None] = [None] * self.slabs

    @property
    def free(self) -> int:
        """Slabs that are not leased."""
        return len(self._free)

    def lease(self, owner: str) -> int:
        """A free slab, finite in any float type. Raises IndexError where there is none."""
        slab = self._free.pop()
        if self._last_owners[slab] not in (None, owner):
            # A masked slot has weight 0, but the bytes of another type's numbers can be NaN, and 0 times NaN is NaN.
            self.buffer[slab * self.slab_bytes : (slab + 1) * self.slab_bytes].zero_()
        self._owners[slab] = self._last_owners[slab] = owner
        return slab

    def give_back(self, slab: int) -> None:
        if self._owners[slab] is None:
            raise ValueError(f"slab {slab} is free already")
        self._owners[slab] = None
        self._free.append(slab)

    def leased(self, owner: str) -> list[int]:
        """The slabs of one owner, ascending."""
        return [slab for slab, name in enumerate(self._owners) if name == owner]

    def pages(self, slab: int, layout: KVLayout) -> list[int]:
        """The pages that a model cuts from a slab: row numbers, each with all its layers inside the slab."""
        first = -(-slab * self.slab_bytes // layout.row_bytes)
        end = (slab + 1) * self.slab_bytes // layout.row_bytes
        return list(range(first, end - layout.layers + 1, layout.layers))

    def fewest_pages(self, layout: KVLayout) -> int:
        """Pages that every slab holds; one whose start falls well between two rows may hold one more."""
        return _fewest_pages(self.slab_bytes, layout)

    def all_pages(self, layout: KVLayout) -> int:
        """Pages of a model that leases every slab."""
        if self.slab_bytes % layout.row_bytes == 0:
            return self.slabs * self.fewest_pages(layout)
        return sum(len(self.pages(slab, layout)) for slab in range(self.slabs))

    def close(self) -> None:
        """Lets go of the buffer, whoever still holds the arena."""
        self.buffer = torch.empty(0, dtype=torch.uint8)

    def check_integrity(self) -> None:
        """AssertionError unless every slab is either free, once, or leased."""
        free = {slab for slab, owner in enumerate(self._owners) if owner is None}
        assert free == set(self._free) and len(free) == len(self._free), "a slab is free twice, or lost"


def slab_bytes(layouts: Sequence[KVLayout], budget: int) -> int:
    """A slab size that suits models of these layouts.

    Small slabs move between models more easily; large ones lose less at their ends, where no further page fits. The
    size minimizes the sum of both losses, as shares of the budget. Of equal sums the larger size is taken: fewer slabs
    are less bookkeeping.
    """
    largest = max(layout.page_bytes for layout in layouts)
    unit = math.lcm(*(layout.row_bytes for layout in layouts))
    if unit > largest:
        unit = max(layout.row_bytes for layout in layouts)
    first = -(-largest // unit)
    last = max(first + 1, min(budget // len(layouts), _LARGEST_SLAB_PAGES * largest) // unit)
    step = max(1, (last - first) // _CANDIDATES)

    def loss(size: int) -> tuple[float, int]:
        ends = max(1 - _fewest_pages(size, layout) * layout.page_bytes / size for layout in layouts)
        # A slab needs room for a page of every model.
        useless = 1e9 * any(_fewest_pages(size, layout) < 1 for layout in layouts)
        stuck = max(len(layouts) * size / max(budget, 1), _SMALLEST_SHARE)
        return useless + ends + stuck, -size

    return min((count * unit for count in range(first, last + 1, step)), key=loss)


def _fewest_pages(size: int, layout: KVLayout) -> int:
    """Pages that fit in `size` bytes from any multiple of `size` on: a slab may start within a row."""
    row = layout.row_bytes
    return max(0, size - row + math.gcd(size, row)) // row // layout.layers


def _zeros(size: int, device: str) -> torch.Tensor:
    try:
        if device != "cpu":
            return torch.zeros(size, dtype=torch.uint8, device=device)
        # torch would write the zeros, which takes seconds for gigabytes; numpy's come from the system when touched.
        return torch.from_numpy(np.zeros(size, dtype=np.uint8))
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise EngineError(f"the system does not give {amount_text(size)} of memory for the KV; ask for less") from error

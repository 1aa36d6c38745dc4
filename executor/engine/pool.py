"""Reference-counted KV pages of one model. Pure bookkeeping: the tensors are in `kv.py`."""

from __future__ import annotations


class PagePool:
    """Pages 1 … n-1 to hand out; page 0 is scratch, where padding rows write.

    A page is free (no references) or held by one or more owners: sequences, and the prefix tree.
    """

    def __init__(self, pages: int) -> None:
        if pages < 2:
            raise ValueError("a pool needs at least two pages, one of them scratch")
        self._free = list(range(pages - 1, 0, -1))
        self._references = [0] * pages
        self.capacity = pages - 1

    @property
    def free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """A free page, with one reference. Raises IndexError when there is none."""
        page = self._free.pop()
        self._references[page] = 1
        return page

    def retain(self, page: int) -> None:
        if self._references[page] == 0:
            raise ValueError(f"page {page} is free")
        self._references[page] += 1

    def release(self, page: int) -> None:
        if self._references[page] == 0:
            raise ValueError(f"page {page} is free already")
        self._references[page] -= 1
        if self._references[page] == 0:
            self._free.append(page)

    def shared(self, page: int) -> bool:
        """True where a write must copy first."""
        return self._references[page] > 1

    def check_integrity(self, owners: dict[int, int]) -> None:
        """Compares the counts with those of all known owners (page → references); AssertionError on a leak."""
        for page, count in enumerate(self._references):
            assert count == owners.get(page, 0), f"page {page}: {count} references, {owners.get(page, 0)} owners"
        held = {page for page, count in enumerate(self._references) if count}
        assert held.isdisjoint(self._free) and 0 not in held and len(held) + len(self._free) == self.capacity
        assert len(set(self._free)) == len(self._free), "a page is free twice"

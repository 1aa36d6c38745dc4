"""Reference-counted KV pages of one model, cut from the slabs that it leases. Pure bookkeeping."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from qpdsl.executor.engine.memory.arena import Arena
from qpdsl.executor.engine.memory.kv_cache import KVLayout


class PagePool:
    """Hands out pages; one more, `scratch`, is where padding rows write.

    A page is free (no references) or held by one or more owners: sequences, and the prefix tree. A slab with no page
    held goes back to the arena at once. `on_unshared(page)` is called when all owners but one have released a page.
    Raises ValueError where the arena could not hold a page beside scratch, IndexError where no slab is free.
    """

    def __init__(self, arena: Arena, owner: str, layout: KVLayout) -> None:
        self.arena = arena
        self.owner = owner
        self.layout = layout
        self.on_unshared: Callable[[int], None] = lambda page: None
        self._references: dict[int, int] = {}
        # Slabs with a free page, and those pages; `_slab_of` has every page of the leased slabs.
        self._free: dict[int, list[int]] = {}
        self._slab_of: dict[int, int] = {}
        self._pages_of: dict[int, list[int]] = {}
        # Slabs in which a page was released since the last call of `releasing_slabs`.
        self._releasing: set[int] = set()
        self._fewest = arena.fewest_pages(layout)
        self.capacity = arena.all_pages(layout) - 1
        if self.capacity < 1 or self._fewest < 1:
            raise ValueError("a pool needs at least two pages, one of them scratch")
        self._free_pages = 0
        self.scratch = self.take()

    @property
    def free(self) -> int:
        """Pages that can be taken without evicting or preempting anything."""
        return self._free_pages + self.arena.free * self._fewest

    @property
    def held(self) -> int:
        """Pages in use, by sequences or by the prefix tree."""
        return len(self._references) - 1

    @property
    def slabs(self) -> int:
        """Slabs that this model leases."""
        return len(self._pages_of)

    @property
    def leased(self) -> int:
        """Pages of all slabs that this model leases, scratch excluded."""
        return len(self._slab_of) - 1

    @property
    def leased_bytes(self) -> int:
        return self.slabs * self.arena.slab_bytes

    def take(self) -> int:
        """A free page, with one reference. Raises IndexError when there is none."""
        if not self._free:
            self._lease()
        slab, pages = next(iter(self._free.items()))
        page = pages.pop()
        self._free_pages -= 1
        if not pages:
            del self._free[slab]
        self._references[page] = 1
        return page

    def retain(self, page: int) -> None:
        if page not in self._references:
            raise ValueError(f"page {page} is free")
        self._references[page] += 1

    def retain_all(self, pages: Iterable[int]) -> None:
        references = self._references
        for page in pages:
            if page not in references:
                raise ValueError(f"page {page} is free")
            references[page] += 1

    def release_all(self, pages: Iterable[int]) -> None:
        references = self._references
        for page in pages:
            # Most pages of a sequence are a prefix that many others hold.
            if references.get(page, 0) > 2:
                references[page] -= 1
            else:
                self.release(page)

    def release(self, page: int) -> None:
        count = self._references.get(page, 0)
        if count == 0:
            raise ValueError(f"page {page} is free already")
        if count > 2:
            self._references[page] = count - 1
            return
        slab = self._slab_of[page]
        self._releasing.add(slab)
        if count == 2:
            self._references[page] = 1
            self.on_unshared(page)
            return
        del self._references[page]
        pages = self._free.setdefault(slab, [])
        pages.append(page)
        self._free_pages += 1
        if len(pages) == len(self._pages_of[slab]):
            self._give_back(slab)

    def shared(self, page: int) -> bool:
        """True where a write must copy first."""
        return self._references[page] > 1

    def slab_of(self, page: int) -> int:
        return self._slab_of[page]

    def held_in(self, slab: int) -> list[int]:
        """The pages in use of a slab; none where it is not leased."""
        return [page for page in self._pages_of.get(slab, ()) if page in self._references]

    def releasing_slabs(self) -> set[int]:
        """The slabs in which an owner has released a page since the last call."""
        slabs, self._releasing = self._releasing, set()
        return slabs

    def _lease(self) -> None:
        slab = self.arena.lease(self.owner)
        pages = self.arena.pages(slab, self.layout)
        self._free[slab] = pages[::-1]
        self._pages_of[slab] = pages
        self._free_pages += len(pages)
        for page in pages:
            self._slab_of[page] = slab

    def _give_back(self, slab: int) -> None:
        del self._free[slab]
        pages = self._pages_of.pop(slab)
        for page in pages:
            del self._slab_of[page]
        self._free_pages -= len(pages)
        self._releasing.discard(slab)
        self.arena.give_back(slab)

    def check_integrity(self, owners: dict[int, int]) -> None:
        """Compares the counts with those of all known owners (page → references); AssertionError on a leak."""
        expected = {**owners, self.scratch: owners.get(self.scratch, 0) + 1}
        for page in self._references.keys() | expected.keys():
            count, owned = self._references.get(page, 0), expected.get(page, 0)
            assert count == owned, f"page {page}: {count} references, {owned} owners"
        free = [page for pages in self._free.values() for page in pages]
        assert len(set(free)) == len(free) == self._free_pages, "a page is free twice"
        assert set(free).isdisjoint(self._references) and set(free) | set(self._references) == set(self._slab_of)
        assert sorted(self._pages_of) == self.arena.leased(self.owner), (
            "a slab is leased and unknown, or known and lost"
        )
        layers = self.layout.layers
        assert all(after - page >= layers for page, after in pairwise(sorted(self._slab_of))), "pages overlap"

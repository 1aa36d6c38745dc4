"""The memory of keys and values: a model's layout, the buffer of all models, and the pages that a model has in it.

A *row* is one page of one layer; a page is the rows of all its layers, one after the other. A page goes by the number
of its first row, so layer l of page p is row p + l. Where layers keep different shapes, rows of one size would waste
what the smaller ones leave of it, and pages of one layer each would need a table for every shape. So a row is then a
whole page, in which each layer has as many bytes as it needs.

The buffer is cut into slabs that the models' pools lease, so memory moves between models as their needs change, with no
fixed split (as in Prism and eLLM, here for a generator and its verifier).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import torch

from qpdsl.executor.engine.memory.budget import amount_text
from qpdsl.executor.kernels.data import int4_groups
from qpdsl.executor.kernels.data.kv_rows import KVRows, KVShape, RowKind
from qpdsl.executor.kernels.data.states import StateLayout, StateRows
from qpdsl.executor.kernels.llvm.large_pages import zero_bytes
from qpdsl.executor.requests.errors import EngineError
from qpdsl.grammar.words import KVType

_CANDIDATES = 512
_LARGEST_SLAB_PAGES = 256
# The share of the budget below which a smaller slab gains nothing.
_SMALLEST_SHARE = 1 / 1024


def unsuited(kv_type: KVType, shapes: Iterable[KVShape]) -> str | None:
    """Why layers that keep such shapes cannot keep them in that type; None where they can."""
    for shape in shapes:
        if shape.latent:
            return f"its keys and values are one latent vector, kept in full only, not in {kv_type}"
        if not shape.is_even:
            return f"its keys are {shape.key} wide and its values {shape.value}, and {kv_type} takes equal pairs"
        if kv_type == "int4" and not int4_groups.suits(shape.key):
            return f"its heads are {shape.key} wide, and {kv_type} takes widths that 16 divides; take int8"
    return None


class PageLayout(Protocol):
    """What a pool cuts slabs into: pages of some `rows`, one after the other, `row_bytes` each."""

    @property
    def rows(self) -> int: ...

    @property
    def row_bytes(self) -> int: ...

    @property
    def page_bytes(self) -> int: ...


@dataclass(frozen=True)
class KVLayout:
    """The geometry of a model's KV. Numbers are of `dtype`; with `kv_type` they have fewer bits, and scales (`KVRows`).

    kept: for each layer the shape of what it keeps, or the number of the layer whose keys and values it reads; None
          where it does not attend
    is_empty: no layer attends; there are pages all the same, by whose tokens texts are shared, and what they hold is
              of no use
    """

    kept: tuple[KVShape | int | None, ...]
    page_size: int
    dtype: torch.dtype
    kv_type: KVType | None = None
    is_empty: bool = False

    @classmethod
    def equal(
        cls,
        layers: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        kv_type: KVType | None = None,
    ) -> KVLayout:
        """Of layers that all keep keys and values of one width."""
        return cls((KVShape(kv_heads, head_dim, head_dim),) * layers, page_size, dtype, kv_type)

    @property
    def layers(self) -> int:
        """How many the model has."""
        return len(self.kept)

    @property
    def kind(self) -> RowKind:
        return self.kv_type or "plain"

    @cached_property
    def shapes(self) -> tuple[KVShape, ...]:
        """What is kept, by layers that keep any."""
        return tuple(shape for shape in self.kept if isinstance(shape, KVShape))

    @cached_property
    def is_equal(self) -> bool:
        """Whether all that is kept has one shape, so that a row holds a layer."""
        return len(set(self.shapes)) == 1

    @cached_property
    def rows(self) -> int:
        """Rows of a page."""
        return len(self.shapes) if self.is_equal else 1

    @cached_property
    def row_bytes(self) -> int:
        return self.page_bytes // self.rows

    @cached_property
    def page_bytes(self) -> int:
        return sum(shape.row_bytes(self.kind, self.dtype, self.page_size) for shape in self.shapes)

    @property
    def layer_bytes(self) -> int:
        """Bytes of a page of one layer, on average."""
        return self.page_bytes // len(self.shapes)

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes over all layers."""
        return self.page_bytes // self.page_size

    def owner(self, layer: int) -> int:
        """The layer whose keys and values a layer reads."""
        kept = self.kept[layer]
        return kept if isinstance(kept, int) else layer

    def shape(self, layer: int) -> KVShape:
        """The shape of the keys and values that a layer reads."""
        kept = self.kept[self.owner(layer)]
        assert isinstance(kept, KVShape)
        return kept


class LayerRows(NamedTuple):
    """Where a layer's keys and values lie: in row p + `number` of `rows` for page p."""

    rows: KVRows
    number: int


class KVCache:
    """One model's view of a byte buffer uint8 [bytes] that models share.

    `rows` spans the whole buffer, by what the first layer keeps; which of them are the model's own, its pool knows.
    `of_layer` has the rows of each layer. `scratch` is the page that padding writes to. Where its layers keep `kept`
    states, `states` are the blocks of these in the same buffer.
    """

    def __init__(self, buffer: torch.Tensor, layout: KVLayout, scratch: int, kept: StateLayout | None = None) -> None:
        self.layout = layout
        self.scratch = scratch
        self._kept = kept
        self._view(buffer)

    def close(self) -> None:
        """Lets go of the buffer, whoever still holds the cache."""
        self._view(torch.empty(0, dtype=torch.uint8))

    def _view(self, buffer: torch.Tensor) -> None:
        layout = self.layout
        self.states = None if self._kept is None else StateRows(buffer, self._kept)
        count = buffer.numel() // layout.row_bytes
        self._bytes = buffer[: count * layout.row_bytes].view(count, layout.row_bytes)
        sizes = [shape.row_bytes(layout.kind, layout.dtype, layout.page_size) for shape in layout.shapes]
        begins = [0] * len(sizes) if layout.is_equal else [0, *accumulate(sizes[:-1])]
        parts = [self._bytes[:, at : at + size] for at, size in zip(begins, sizes, strict=True)]
        if layout.is_equal:
            parts = parts[:1]
        self._parts = [
            KVRows.of(part, shape, layout.page_size, layout.kind, layout.dtype)
            for part, shape in zip(parts, layout.shapes, strict=False)
        ]
        self.rows = self._parts[0]
        own = [layer for layer, kept in enumerate(layout.kept) if isinstance(kept, KVShape)]
        places = {layer: (self.rows, at) if layout.is_equal else (self._parts[at], 0) for at, layer in enumerate(own)}
        self.of_layer = {
            layer: LayerRows(*places[layout.owner(layer)]) for layer, kept in enumerate(layout.kept) if kept is not None
        }
        # The same memory by tokens, for copies too small to be worth a call of torch.
        host = layout.kv_type is None and layout.is_equal and not buffer.is_cuda
        size = layout.page_size
        self._by_token = self._bytes.numpy().reshape(count, size, layout.row_bytes // size) if host else None

    def copy_page(self, source: int, target: int, tokens: int) -> None:
        """Copies the first `tokens` of one page, or all of it, in every layer (copy-on-write)."""
        rows, data = self.layout.rows, self._by_token
        if data is not None:
            data[target : target + rows, :tokens] = data[source : source + rows, :tokens]
        else:
            self._bytes[target : target + rows] = self._bytes[source : source + rows]

    def copy_token(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        """Copies keys and values of one token, from a page and place to another, in every layer."""
        count, (old, old_place), (new, new_place) = self.layout.rows, source, target
        for rows in self._parts:
            for part in rows.split():
                part[new : new + count, new_place] = part[old : old + count, old_place]


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

    def pages(self, slab: int, layout: PageLayout) -> list[int]:
        """The pages that a model cuts from a slab: row numbers, each with all its layers inside the slab."""
        first = -(-slab * self.slab_bytes // layout.row_bytes)
        end = (slab + 1) * self.slab_bytes // layout.row_bytes
        return list(range(first, end - layout.rows + 1, layout.rows))

    def fewest_pages(self, layout: PageLayout) -> int:
        """Pages that every slab holds; one whose start falls well between two rows may hold one more."""
        return _fewest_pages(self.slab_bytes, layout)

    def all_pages(self, layout: PageLayout) -> int:
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


def slab_bytes(layouts: Sequence[PageLayout], budget: int) -> int:
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


def _fewest_pages(size: int, layout: PageLayout) -> int:
    """Pages that fit in `size` bytes from any multiple of `size` on: a slab may start within a row."""
    row = layout.row_bytes
    return max(0, size - row + math.gcd(size, row)) // row // layout.rows


def _zeros(size: int, device: str) -> torch.Tensor:
    try:
        return zero_bytes(size) if device == "cpu" else torch.zeros(size, dtype=torch.uint8, device=device)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise EngineError(f"the system does not give {amount_text(size)} of memory for the KV; ask for less") from error


@dataclass(slots=True)
class SlabShare:
    """The slabs that the pools of one model may lease together: `most`, of which they have `leased`."""

    most: int
    leased: int = 0

    @property
    def left(self) -> int:
        """Slabs that they may still lease."""
        return self.most - self.leased


class Pool:
    """Hands out pages.

    A page is free (no references) or held by one or more owners: sequences, and the prefix tree. A slab with no page
    held goes back to the arena at once. `on_shared(page)` is called when a page gets a second owner, and
    `on_unshared(page)` when all owners but one have released it. Pools of one model have a `share`; without one they
    may lease every slab. Raises ValueError where no slab would hold a page.
    """

    def __init__(self, arena: Arena, owner: str, layout: PageLayout, share: SlabShare | None = None) -> None:
        self.arena = arena
        self.share = share or SlabShare(arena.slabs)
        self.owner = owner
        self.layout = layout
        self.on_shared: Callable[[int], None] = lambda page: None
        self.on_unshared: Callable[[int], None] = lambda page: None
        self._references: dict[int, int] = {}
        # Slabs with a free page, and those pages; `_slab_of` has every page of the leased slabs.
        self._free: dict[int, list[int]] = {}
        self._slab_of: dict[int, int] = {}
        self._pages_of: dict[int, list[int]] = {}
        # Slabs in which a page was released since the last call of `releasing_slabs`.
        self._releasing: set[int] = set()
        self._fewest = arena.fewest_pages(layout)
        most = self.share.most
        self.capacity = arena.all_pages(layout) if most >= arena.slabs else most * self._fewest
        if self._fewest < 1:
            raise ValueError("a slab holds no page")
        self._free_pages = 0

    @property
    def free(self) -> int:
        """Pages that can be taken without evicting or preempting anything."""
        return self._free_pages + min(self.arena.free, self.share.left) * self._fewest

    @property
    def may_grow(self) -> bool:
        """Whether slabs of others, if they were free, would be of use here."""
        return self.share.left > self.arena.free

    @property
    def held(self) -> int:
        """Pages in use, by sequences or by the prefix tree."""
        return len(self._references)

    @property
    def slabs(self) -> int:
        """Slabs that this model leases."""
        return len(self._pages_of)

    @property
    def leased(self) -> int:
        """Pages of all slabs that this model leases."""
        return len(self._slab_of)

    @property
    def leased_bytes(self) -> int:
        return self.slabs * self.arena.slab_bytes

    def take(self) -> int:
        """A free page, with one reference. Raises IndexError when there is none."""
        if not self._free:
            if self.share.left < 1:
                raise IndexError("the model has all slabs that it may have")
            self._lease()
        slab, pages = next(iter(self._free.items()))
        page = pages.pop()
        self._free_pages -= 1
        if not pages:
            del self._free[slab]
        self._references[page] = 1
        return page

    def retain(self, page: int) -> None:
        self.retain_all((page,))

    def retain_all(self, pages: Iterable[int]) -> None:
        references = self._references
        for page in pages:
            count = references.get(page, 0)
            if count == 0:
                raise ValueError(f"page {page} is free")
            references[page] = count + 1
            if count == 1:
                self.on_shared(page)

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

    def references(self, page: int) -> int:
        """How many own a page in use."""
        return self._references[page]

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
        self.share.leased += 1
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
        self.share.leased -= 1
        self.arena.give_back(slab)

    def check_integrity(self, owners: dict[int, int]) -> None:
        """Compares the counts with those of all known owners (page → references); AssertionError on a leak."""
        for page in self._references.keys() | owners.keys():
            count, owned = self._references.get(page, 0), owners.get(page, 0)
            assert count == owned, f"page {page}: {count} references, {owned} owners"
        free = [page for pages in self._free.values() for page in pages]
        assert len(set(free)) == len(free) == self._free_pages, "a page is free twice"
        assert set(free).isdisjoint(self._references) and set(free) | set(self._references) == set(self._slab_of)
        assert sorted(self._pages_of) == self.arena.leased(self.owner), (
            "a slab is leased and unknown, or known and lost"
        )
        rows = self.layout.rows
        assert all(after - page >= rows for page, after in pairwise(sorted(self._slab_of))), "pages overlap"


class PagePool(Pool):
    """Pages of keys and values; one more than those that it counts, `scratch`, is where padding rows write.

    Raises ValueError where the arena could not hold a page beside scratch, IndexError where no slab is free.
    """

    layout: KVLayout

    def __init__(self, arena: Arena, owner: str, layout: KVLayout, share: SlabShare | None = None) -> None:
        super().__init__(arena, owner, layout, share)
        self.capacity -= 1
        if self.capacity < 1:
            raise ValueError("a pool needs at least two pages, one of them scratch")
        self.scratch = self.take()

    @property
    def held(self) -> int:
        """See `Pool`."""
        return super().held - 1

    @property
    def leased(self) -> int:
        """See `Pool`."""
        return super().leased - 1

    def check_integrity(self, owners: dict[int, int]) -> None:
        """See `Pool`."""
        super().check_integrity({**owners, self.scratch: owners.get(self.scratch, 0) + 1})

"""The order in which a sweep runs its rows.

Cells share what they compute of a problem: the KV of its prompt, scores, and samples, since those of n=4 are the first
four of n=16. What is shared must stay in memory until the last cell has used it. So a sweep goes through the problems
in blocks, and through all cells within a block: memory is bounded by the block, however many rows there are. The widest
cell goes first, as all others then find their samples drawn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
# Problems of a block. Rows of several blocks and cells run side by side all the same.
BLOCK = 16


def row_order(cells: Sequence[tuple[T, Collection[int]]], block: int = BLOCK) -> Iterator[tuple[T, int]]:
    """Each cell with the number of each row that is left to it, block by block, the cells of a block in this order.

    `cells` are pairs of a cell and the numbers of the rows that are left to it.
    """
    last = max((max(left, default=-1) for _, left in cells), default=-1)
    for start in range(0, last + 1, block):
        for cell, left in cells:
            yield from ((cell, number) for number in range(start, start + block) if number in left)

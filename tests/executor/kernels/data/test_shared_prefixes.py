"""The prefixes that sequences share, found in their page tables."""

from __future__ import annotations

import pytest
import torch

from qpdsl.executor.kernels.data.shared_prefixes import plan
from tests.support.executor.paged_case import page_tables

CPU = torch.device("cpu")
# Sequences 0, 2, 3, 5 share three pages, and 2 and 5 of them two more; 1 and 6 share two; 4 shares none.
CONTEXTS = [60, 40, 90, 49, 35, 81, 33]
SHARED = [(3, 0, 2, 3, 5), (5, 2, 5), (2, 1, 6)]


def test_plan_finds_nested_prefixes() -> None:
    tables, _ = page_tables(CONTEXTS, 16, torch.Generator().manual_seed(0), SHARED)
    cascade = plan(tables, CONTEXTS, 16, CPU, least=16)
    assert cascade is not None
    ranges = set()
    for first, last, begin, end, level in cascade.tiles.tolist():
        ranges.add((tuple(sorted(cascade.members[first:last].tolist())), begin, end, level))
    assert ranges == {((0, 2, 3, 5), 0, 48, 0), ((2, 5), 48, 80, 1), ((1, 6), 0, 32, 0)}
    assert cascade.start.tolist() == [48, 32, 80, 48, 0, 80, 32]
    assert cascade.levels.tolist() == [1, 1, 2, 1, 0, 2, 1]
    assert (cascade.width, cascade.depth, cascade.prefix, cascade.suffix) == (4, 2, 48, 35)


def test_plan_leaves_each_sequence_its_new_token() -> None:
    # Both contexts end with the shared page, so its last token is new in both and the page is not shared work.
    assert plan([[0, 2], [0, 2]], [16, 16], 16, CPU, least=1) is None
    cascade = plan([[0, 2], [0, 2]], [17, 17], 16, CPU, least=1)
    assert cascade is not None
    assert cascade.start.tolist() == [16, 16]


@pytest.mark.parametrize("tables", [[], [[0, 2, 4]], [[0, 2, 4], [6, 2, 4]], [[0, 2, 4], [0, 6, 8]]])
def test_plan_of_nothing_worth_sharing(tables: list[list[int]]) -> None:
    assert plan(tables, [40] * len(tables), 16, CPU, least=32) is None

"""The prefixes that sequences share, found in their page tables."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qpdsl.executor.kernels.data.paged_batch import PrefixCascade
from qpdsl.executor.kernels.data.shared_prefixes import DEEPEST, launch_bytes, plan, plan_pages
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


def saved(cascade: PrefixCascade) -> int:
    """The tokens that sequences do not read, as another reads them for all."""
    return sum((last - first - 1) * (end - begin) for first, last, begin, end, _ in cascade.tiles.tolist())


@st.composite
def shared_pages(draw: st.DrawFn) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.int32]], list[int]]:
    """Page tables that grew as a tree of forks does, with any ids behind what may be shared; and those counts."""
    paths: list[list[int]] = [[]]
    for page in range(draw(st.integers(1, 40))):
        parent = draw(st.sampled_from(paths))
        paths.append([*parent, page])
    chosen = draw(st.lists(st.sampled_from(paths), min_size=1, max_size=12))
    width = max(map(len, chosen)) + 3
    behind = st.integers(0, 40)
    pages = [[*path, *(draw(behind) for _ in range(width - len(path)))] for path in chosen]
    return np.array(pages, dtype=np.int32), [len(path) for path in chosen]


@settings(max_examples=60)
@given(shared_pages(), st.integers(1, 3))
def test_tiles_hold_what_their_sequences_share(
    case: tuple[np.ndarray[tuple[int, int], np.dtype[np.int32]], list[int]], least: int
) -> None:
    """All of it, no more, and whatever lies behind: a range, its level and who is in it are right for each tile."""
    pages, counts = case
    cascade = plan_pages(pages, np.array(counts), 1, least=least)
    common = [
        [next((place for place in range(min(counts[a], counts[b])) if pages[a, place] != pages[b, place]),
              min(counts[a], counts[b])) for b in range(len(counts)) if b != a]
        for a in range(len(counts))
    ]  # fmt: skip
    if cascade is None:
        assert all(shared < least for line in common for shared in line)
        return
    assert sorted(cascade.members.tolist()) == [*range(len(counts))]
    inside = [0] * len(counts)
    levels = [0] * len(counts)
    for first, last, begin, end, level in cascade.tiles.tolist():
        members = cascade.members[first:last].tolist()
        assert len(members) > 1 and end - begin >= least
        for member in members:
            assert (inside[member], levels[member]) == (begin, level), "ranges follow each other, level by level"
            inside[member], levels[member] = end, level + 1
            assert pages[member, :end].tolist() == pages[members[0], :end].tolist() and end <= counts[member]
    assert inside == cascade.start.tolist() and levels == cascade.levels.tolist()
    for sequence, line in enumerate(common):
        # With too few levels, or tiles left, a sequence reads the rest by itself.
        assert levels[sequence] == DEEPEST or max(line) - inside[sequence] < least or inside[sequence] > 0


def test_a_cascade_is_taken_for_what_it_saves() -> None:
    pages = np.array([[1, 2, 3, 9], [1, 2, 3, 8], [1, 2, 7, 6], [5, 0, 0, 0]], dtype=np.int32)
    counts = np.array([4, 4, 4, 1])
    # Two pages that three read, and one more that two do: three and a half hundred tokens, in pages of 70.
    cascade = plan_pages(pages, counts, 70, least=70)
    assert cascade is not None and saved(cascade) == 350 and cascade.depth == 2
    assert plan_pages(pages, counts, 70, least=70, worth=349) is not None
    assert plan_pages(pages, counts, 70, least=70, worth=350) is None


def test_what_launches_cost_is_told_in_bytes_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launch_bytes(CPU) == 0
    devices = {
        "cuda:6": SimpleNamespace(memory_clock_rate=2_619_000, memory_bus_width=5120),
        "cuda:7": SimpleNamespace(),
    }
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: devices[str(device)])
    # An H100 reads 3.35 TB/s, so 17 MB in 5 µs; one that does not tell is taken for a slower one.
    assert launch_bytes(torch.device("cuda:6")) == pytest.approx(5e-6 * 3.352e12, rel=1e-3)
    assert 1e6 < launch_bytes(torch.device("cuda:7")) < launch_bytes(torch.device("cuda:6"))

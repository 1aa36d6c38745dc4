"""The order of a sweep's rows: each once, and the cells of a problem near one another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qpdsl.runs.sweep import row_order

LEFT = st.lists(st.sets(st.integers(0, 50)), max_size=6)


@given(LEFT, st.integers(1, 8))
def test_each_row_once_and_a_block_is_left_for_good(left: list[set[int]], block: int) -> None:
    order = list(row_order(list(enumerate(left)), block))
    assert sorted(order) == sorted((cell, number) for cell, numbers in enumerate(left) for number in numbers)
    blocks = [number // block for _, number in order]
    assert blocks == sorted(blocks)


def test_a_block_goes_cell_by_cell() -> None:
    order = list(row_order([("wide", range(5)), ("narrow", {0, 3, 4})], 2))
    assert order == [
        ("wide", 0), ("wide", 1), ("narrow", 0),
        ("wide", 2), ("wide", 3), ("narrow", 3),
        ("wide", 4), ("narrow", 4),
    ]  # fmt: skip

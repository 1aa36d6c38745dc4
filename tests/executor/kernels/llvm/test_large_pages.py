"""Memory for weights: whatever its size, nobody else writes to it."""

from __future__ import annotations

import pytest
import torch

from qpdsl.executor.kernels.llvm.large_pages import aligned_bytes


@pytest.mark.parametrize("sizes", [(1, 100), (3 << 20, (1 << 20) + 1, 2 << 20), (65 << 20, 1 << 20)])
def test_each_part_begins_with_a_line_and_is_its_own(sizes: tuple[int, ...]) -> None:
    with torch.inference_mode():
        aligned_bytes(40 << 20)
    parts = [aligned_bytes(size).fill_(number) for number, size in enumerate(sizes)]
    for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        assert part.data_ptr() % 64 == 0
        assert part.shape == (size,)
        assert part.min() == part.max() == number

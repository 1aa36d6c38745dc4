"""Memory: whatever its size, nobody else writes to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qpdsl.executor.kernels.llvm.large_pages import aligned_bytes, give_back, zero_bytes


@pytest.mark.parametrize("sizes", [(1, 100), (3 << 20, (1 << 20) + 1, 2 << 20), (65 << 20, 1 << 20)])
def test_each_part_begins_with_a_line_and_is_its_own(sizes: tuple[int, ...]) -> None:
    with torch.inference_mode():
        aligned_bytes(40 << 20)
    parts = [aligned_bytes(size).fill_(number) for number, size in enumerate(sizes)]
    for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        assert part.data_ptr() % 64 == 0
        assert part.shape == (size,)
        assert part.min() == part.max() == number


@pytest.mark.parametrize("size", [0, 3, 5 << 20])
def test_zeros_begin_with_a_line(size: int) -> None:
    memory = zero_bytes(size)
    assert memory.shape == (size,)
    assert not memory.any()
    assert size == 0 or memory.data_ptr() % 64 == 0


def test_what_is_given_back_is_read_from_its_file_again(tmp_path: Path) -> None:
    own = torch.arange(1 << 16, dtype=torch.int32)
    file = tmp_path / "numbers"
    file.write_bytes(own.numpy().tobytes())
    mapped = torch.from_file(str(file), shared=False, size=own.numel(), dtype=torch.int32)
    give_back(mapped[100:50_000])
    assert torch.equal(mapped, own)
    # Whatever lies beside it on a page stays, in memory of any kind.
    whole = own.clone()
    give_back(whole[1000:3000])
    assert torch.equal(whole[:1000], own[:1000])
    assert torch.equal(whole[3000:], own[3000:])

"""What layers keep of a sequence besides keys and values: one block of numbers, rewritten with every token.

A recurrent layer's state is the sum of all tokens so far, so it cannot be cut where pages can: a block holds the states
of all layers after exactly so many tokens. A step runs *segments*: a segment goes on from the block `source` and leaves
the states after its rows in the block `target`. So a copy for the prefix tree is a segment that ends there, and a fork
is two segments with one source; nothing is copied by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import torch

# A segment with this source begins a text: all its states are zero.
FRESH = -1
# Parts begin at multiples of so many bytes.
_ALIGNMENT = 64


class StatePart(NamedTuple):
    """One tensor that a layer keeps of each sequence, such as the last inputs of a convolution."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class StateLayout:
    """The parts of each layer, by its number; a layer without states has none."""

    layers: tuple[tuple[StatePart, ...], ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of the states of one sequence."""
        return sum(_aligned(part.bytes) for parts in self.layers for part in parts)

    def places(self) -> Iterator[tuple[int, StatePart, int]]:
        """Each part with its layer, and where it begins in a block, in bytes."""
        at = 0
        for layer, parts in enumerate(self.layers):
            for part in parts:
                yield layer, part, at
                at += _aligned(part.bytes)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class StateRows:
    """The `blocks` in a byte buffer uint8 [bytes]: block b begins at byte b · block_bytes of `data`."""

    def __init__(self, buffer: torch.Tensor, layout: StateLayout) -> None:
        size = self.block_bytes = layout.block_bytes
        count = self.blocks = buffer.numel() // size
        self.data = blocks = buffer[: count * size].view(count, size)
        self._parts: dict[tuple[int, str], torch.Tensor] = {
            (layer, part.name): blocks[:, at : at + part.bytes].view(part.dtype).view(count, *part.shape)
            for layer, part, at in layout.places()
        }

    def part(self, layer: int, name: str) -> torch.Tensor:
        """[blocks, *shape], a view of the buffer: the blocks lie `block_bytes` apart."""
        return self._parts[layer, name]


class StateSegment(NamedTuple):
    """So many `rows` of a step from `row` on, the next tokens of one sequence, and the blocks before and after them."""

    source: int
    target: int
    row: int
    rows: int


@dataclass(frozen=True)
class StateStep:
    """The segments of a step, in the order of their rows. One whose source is another's target comes after it."""

    rows: StateRows
    segments: tuple[StateSegment, ...]

    @cached_property
    def table(self) -> torch.Tensor:
        """The segments int64 [S, 4], for kernels."""
        return torch.tensor(self.segments, dtype=torch.int64).view(-1, len(StateSegment._fields))

    @cached_property
    def chains(self) -> torch.Tensor:
        """Where in the table each chain begins, and where the last ends, int64 [C + 1].

        Segments of different chains touch no block of each other.
        """
        starts: list[int] = []
        touched: dict[int, int] = {}
        for number, segment in enumerate(self.segments):
            blocks = {segment.source, segment.target} - {FRESH}
            first = min(touched.setdefault(block, number) for block in blocks)
            while starts and starts[-1] > first:
                del starts[-1]
            if first == number:
                starts.append(number)
        return torch.tensor([*starts, len(self.segments)], dtype=torch.int64)

"""The roofline of a step: operations and bytes, what bounds it, and from which batch on.

A step takes as long as the slower of arithmetic and memory (Williams, Waterman and Patterson, 2009). A step that
decodes reads the weights once, whatever the batch, and the keys and values of every sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qpdsl.planner.capacity.architecture import Architecture
from qpdsl.planner.capacity.hardware import Hardware

Bound = Literal["memory", "compute"]
# No batch is larger, so that a crossover beyond it is none.
_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class Held:
    """A model as it is held: the bytes of a parameter and their type, and the bytes of a number of the KV cache."""

    architecture: Architecture
    number_bytes: float
    number_type: str
    kv_number_bytes: float


@dataclass(frozen=True, slots=True)
class Step:
    """A step in which `batch` sequences of `context` tokens draw one token each."""

    batch: int
    context: int
    flops: float
    weight_bytes: float
    kv_bytes: float

    @property
    def intensity(self) -> float:
        """Operations for each byte read (ops:byte)."""
        return self.flops / (self.weight_bytes + self.kv_bytes)

    def seconds(self, hardware: Hardware, number_type: str) -> float:
        moving = (self.weight_bytes + self.kv_bytes) / hardware.bandwidth
        return max(moving, self.flops / hardware.peak(number_type))

    def bound(self, hardware: Hardware, number_type: str) -> Bound:
        return "memory" if self.intensity < hardware.ridge(number_type) else "compute"


def decode_step(held: Held, batch: int, context: int) -> Step:
    """A step that decodes, at this batch."""
    architecture = held.architecture
    return Step(
        batch,
        context,
        batch * architecture.flops(context),
        architecture.read(batch) * held.number_bytes,
        batch * architecture.kv_bytes(context, held.kv_number_bytes),
    )


def crossover(held: Held, hardware: Hardware, context: int) -> int | None:
    """The smallest batch at which a step that decodes is bound by arithmetic; None where none is.

    With long contexts there is none: every sequence brings keys and values of its own to read.
    """

    def computes(batch: int) -> bool:
        return decode_step(held, batch, context).bound(hardware, held.number_type) == "compute"

    if not computes(_MOST):
        return None
    # More sequences share the weights, so that the intensity never falls.
    low, high = 0, _MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if computes(middle) else (middle, high)
    return high


def prefill_seconds(held: Held, hardware: Hardware, tokens: int) -> float:
    """The least seconds of a prompt of so many tokens."""
    architecture = held.architecture
    moving = architecture.read(tokens) * held.number_bytes / hardware.bandwidth
    return max(moving, architecture.prompt_flops(tokens) / hardware.peak(held.number_type))

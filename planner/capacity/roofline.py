"""The memory of a model on a piece of hardware, and the roofline of a step: what bounds it, and from which batch on.

The memory is weights, activations, other, and blocks of keys and values: the parts of section 6.1 of the thesis on a
scalable runtime for LLM inference, after vLLM: KV = memory × utilization − (weights + activations + other). Activations
and other are kept back together: the share of the memory that is not to be used, or what the activations take where
that is more.

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
# The share of the memory that may be used, the tokens of a block, and those of the largest step.
UTILIZATION = 0.9
BLOCK = 16
STEP_TOKENS = 2048
# Logits are kept in float32, for so many sequences at the most.
_LOGIT_BYTES = 4
_LOGIT_ROWS = 128
_ACTIVATION_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class HeldModel:
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


def decode_step(held: HeldModel, batch: int, context: int) -> Step:
    """A step that decodes, at this batch."""
    architecture = held.architecture
    return Step(
        batch,
        context,
        batch * architecture.flops(context),
        architecture.read(batch) * held.number_bytes,
        # States are read and written.
        batch * (architecture.kv_bytes(context, held.kv_number_bytes) + architecture.state_bytes),
    )


def crossover(held: HeldModel, hardware: Hardware, context: int) -> int | None:
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


def prefill_seconds(held: HeldModel, hardware: Hardware, tokens: int) -> float:
    """The least seconds of a prompt of so many tokens."""
    architecture = held.architecture
    moving = architecture.read(tokens) * held.number_bytes / hardware.bandwidth
    return max(moving, architecture.prompt_flops(tokens) / hardware.peak(held.number_type))


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes of each part, with keys and values of `kv_type`. `kv` is negative where the weights do not fit.

    `blocks` of `block_bytes` each hold `BLOCK` tokens in every layer. `users` says how many sequences of a length fit
    at once.
    """

    kv_type: str
    memory: int
    weights: float
    activations: float
    other: float
    kv: float
    block_bytes: float
    blocks: int
    users: dict[int, int]

    @property
    def fits(self) -> bool:
        return self.kv > 0


def memory_parts(
    architecture: Architecture,
    hardware: Hardware,
    weights: float,
    kv_type: str,
    kv_number_bytes: float,
    contexts: tuple[int, ...],
    utilization: float = UTILIZATION,
) -> MemoryParts:
    """The parts with `weights` bytes of weights, and the users at each of the `contexts`."""
    activations = activation_bytes(architecture, STEP_TOKENS)
    kept_back = max(hardware.memory * (1 - utilization), activations)
    kv = hardware.memory - weights - kept_back
    block_bytes = BLOCK * architecture.token_kv_bytes(kv_number_bytes)
    users = {context: max(int(kv // architecture.kv_bytes(context, kv_number_bytes, BLOCK)), 0) for context in contexts}
    blocks = max(int(kv // block_bytes), 0)
    other = kept_back - activations
    return MemoryParts(kv_type, hardware.memory, weights, activations, other, kv, block_bytes, blocks, users)


def activation_bytes(architecture: Architecture, tokens: int) -> float:
    """What a step of so many tokens holds on its way at the most: a layer's numbers in 16 bits, and the logits.

    Of a row: the residual, what is normed, and then either queries, keys, values and what was attended, or both halves
    of the gated MLP.
    """
    queries = architecture.heads * architecture.head_dim
    attention = 2 * queries + 2 * architecture.kv_heads * architecture.head_dim
    row = 2 * architecture.hidden + max(attention, 2 * architecture.intermediate)
    logits = min(tokens, _LOGIT_ROWS) * architecture.vocabulary * _LOGIT_BYTES
    return tokens * row * _ACTIVATION_BYTES + logits

"""The memory of a model on a piece of hardware: weights, activations, other, and blocks of keys and values.

The parts are those of section 6.1 of the thesis on a scalable runtime for LLM inference, after vLLM:
KV = memory × utilization − (weights + activations + other). Activations and other are kept back together: the share of
the memory that is not to be used, or what the activations take where that is more.
"""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.planner.capacity.architecture import Architecture
from qpdsl.planner.capacity.hardware import Hardware

# The share of the memory that may be used, the tokens of a block, and those of the largest step.
UTILIZATION = 0.9
BLOCK = 16
STEP_TOKENS = 2048
# Logits are kept in float32, for so many sequences at the most.
_LOGIT_BYTES = 4
_LOGIT_ROWS = 128
_ACTIVATION_BYTES = 2.0


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

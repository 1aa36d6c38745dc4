"""The models of the estimate and of the GPU's benchmarks, as numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KVKind = Literal["plain", "int8", "fp8"]
# Bytes of a number of the models' type, bfloat16.
_WIDE = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder with gated MLPs, in bfloat16. `tied`: the head has the embedding's weights."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool

    @property
    def dim(self) -> int:
        """The width of a head."""
        return self.hidden // self.heads

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """The matrix products of a layer where those of the same inputs are joined: outputs and inputs of each."""
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * self.dim, self.hidden),
            "out": (self.hidden, self.heads * self.dim),
            "gate and up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }

    @property
    def layer_weights(self) -> int:
        """The numbers in the products of all layers."""
        return self.layers * sum(outputs * inputs for outputs, inputs in self.products.values())

    @property
    def head_weights(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that a decode step reads: of the embedding only where it is the head too; norms as well."""
        return _WIDE * (self.layer_weights + self.head_weights + (2 * self.layers + 1) * self.hidden)

    @property
    def held_bytes(self) -> int:
        """Bytes of weights in memory."""
        return self.read_bytes + (0 if self.tied else _WIDE * self.head_weights)

    def token_bytes(self, kind: KVKind = "plain") -> int:
        """Bytes of a token's keys and values in all layers (`kv_rows.py` lays them out so)."""
        return self.layers * self.kv_heads * vector_bytes(self.dim, kind)


def vector_bytes(dim: int, kind: KVKind) -> int:
    """Bytes of a key and a value of one head: of eight bits with a float32 scale each."""
    return 2 * (_WIDE * dim if kind == "plain" else dim + 4)


# Llama 3.2 1B and Llama 3.1 8B (Grattafiori et al., "The Llama 3 Herd of Models", 2024, table 3; the models' cards).
SHAPES = {
    "1B": Shape(2048, 8192, 16, 32, 8, 128_256, tied=True),
    "8B": Shape(4096, 14_336, 32, 32, 8, 128_256, tied=False),
}

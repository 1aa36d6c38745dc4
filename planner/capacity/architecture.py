"""The numbers of a model on which its memory and its operations depend, and the configurations of a few published
models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# Bytes of a number in each type that weights, keys and values may have. What scales take beside them does not count.
NUMBER_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
_FILE = Path(__file__).with_name("published_models.json")


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of all layers: their `parameters`, how many a layer has, and how many of them a token uses."""

    parameters: int
    count: int
    used: int

    def touched(self, tokens: float) -> float:
        """The share of the experts that some of so many tokens use, where each token's choice is random."""
        untouched: float = (1 - self.used / self.count) ** tokens
        return 1 - untouched


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model by its numbers.

    `parameters` counts shared weights once. `looked_up` are those of embeddings that no token is multiplied with: none
    where the head shares them. `intermediate` is the width of the MLP that a token goes through, `vocabulary` that of
    the head. `windows` has one entry for each layer that attends: how many tokens it attends to at the most, None for
    all of them. `unattending` are the others. `state_bytes` is what layers keep of a sequence besides keys and values,
    however long it is.
    `number_type` is the type that the weights were saved in, and `stored_bytes` the bytes of the weight files, None
    where only a configuration is there. With `latent`, keys alone are kept, and values are so many numbers of them
    (multi-head latent attention).
    """

    name: str
    parameters: int
    looked_up: int
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    experts: Experts | None = None
    number_type: str = "bf16"
    stored_bytes: int | None = None
    latent: int | None = None
    unattending: int = 0
    state_bytes: int = 0

    @property
    def layers(self) -> int:
        return len(self.windows) + self.unattending

    @property
    def active(self) -> float:
        """The parameters that every token is multiplied with."""
        unused = 0.0
        if self.experts is not None:
            unused = self.experts.parameters * (1 - self.experts.used / self.experts.count)
        return self.parameters - self.looked_up - unused

    def read(self, tokens: float) -> float:
        """The parameters that a step of so many tokens reads."""
        unread = 0.0
        if self.experts is not None:
            unread = self.experts.parameters * (1 - self.experts.touched(tokens))
        return self.parameters - self.looked_up - unread

    def token_kv_bytes(self, number_bytes: float) -> float:
        """The keys and values of one token in all layers."""
        return len(self.windows) * self._layer_kv_bytes(number_bytes)

    def kv_bytes(self, context: int, number_bytes: float, block: int = 1) -> float:
        """What is kept of a sequence of so many tokens: keys and values, in blocks of `block` tokens, and states.

        A layer with a window holds that many tokens only.
        """
        tokens = sum(-(-_within(context, window) // block) * block for window in self.windows)
        return tokens * self._layer_kv_bytes(number_bytes) + self.state_bytes

    def flops(self, context: int) -> float:
        """The operations of one token that attends to `context` others: two a parameter, and those of attention."""
        attended = sum(_within(context, window) for window in self.windows)
        return 2.0 * self.active + 2.0 * self.heads * self._read_numbers * attended

    def prompt_flops(self, tokens: int) -> float:
        """The operations of a prompt of so many tokens: each attends to those before it."""
        return (
            sum(2.0 * self.heads * self._read_numbers * _pairs(tokens, window) for window in self.windows)
            + 2.0 * self.active * tokens
        )

    @property
    def _read_numbers(self) -> int:
        """The numbers of a key and a value that a head reads."""
        return self.head_dim + (self.latent or self.head_dim)

    def _layer_kv_bytes(self, number_bytes: float) -> float:
        kept = self.head_dim if self.latent else 2 * self.head_dim
        return self.kv_heads * kept * number_bytes


def _within(context: int, window: int | None) -> int:
    return context if window is None else min(context, window)


def _pairs(tokens: int, window: int | None) -> float:
    """The pairs of a token and one that it attends to, itself included."""
    near = _within(tokens, window)
    return near * (near + 1) / 2 + (tokens - near) * near


@cache
def published_models() -> Mapping[str, Mapping[str, Any]]:
    """What a config.json of each says, as far as its size depends on it."""
    models: Mapping[str, Mapping[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return models

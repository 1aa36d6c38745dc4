"""What a head draws tokens from: its weights, and the draws of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


class HeadWeights(NamedTuple):
    """A linear head: logits = cap(scale · (W·h + bias)), cap(x) = softcap · tanh(x / softcap).

    weight:  [V, d], float32, bfloat16 or float16, the last dimension contiguous
    bias:    [V], of any of these types; None for none
    softcap: None for none
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None


class TokenDraws(NamedTuple):
    """Tokens to draw; several draws may read one hidden state.

    rows:         int32 [D], the hidden state of each draw
    temperatures: float32 [D], 0 for greedy
    keys:         int64 [D], the bits of the noise keys
    positions:    int64 [D], how many tokens were drawn before under each key
    """

    rows: torch.Tensor
    temperatures: torch.Tensor
    keys: torch.Tensor
    positions: torch.Tensor

    @property
    def size(self) -> int:
        """How many they are."""
        return self.rows.shape[0]


@dataclass(frozen=True, slots=True)
class Filters:
    """Which ids the draws of a step choose among: top-k, top-p and min-p, each of what the one before left.

    top_k: int32 [D], 0 where it is off
    top_p: float64 [D], at least 1 where it is off
    min_p: float64 [D], 0 where it is off
    slots: int32 [D], which of the `count` draws with filters this is; -1 for one without, or a greedy one
    """

    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    slots: torch.Tensor
    count: int


# Tokens int64 [D], log-probabilities at temperature 1 float32 [D], and the gaps between the best and the second best
# perturbed score float32 [D]: infinite where only one id is possible, 0 where rounding could have moved the cut of a
# filter. Where no id is possible, a draw has some token.
Drawn = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

"""Heads that are not the language model's own: what a reward model reads off a hidden state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import linear, relu

# A linear layer: weight [out, in], and bias [out] or None.
Layer = tuple[torch.Tensor, torch.Tensor | None]


class ValueHead:
    """Hidden states [N, d] to values float32 [N, K]: linear layers with ReLU between them, computed in float32.

    It stands where a `LogitHead` does, and a `ReadRequest.ids` numbers its outputs.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = [(weight.float(), None if bias is None else bias.float()) for weight, bias in layers]
        self.width = self.layers[-1][0].shape[0]

    def dense(self, hidden: torch.Tensor) -> torch.Tensor:
        """Values float32 [N, K], a row at a time, so that a value's bits do not depend on N."""
        return torch.stack([self._values(row) for row in hidden.float()])

    def gather(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Values float32 [N, K] of the given outputs int64 [K] only."""
        return self.dense(hidden)[:, ids]

    def _values(self, row: torch.Tensor) -> torch.Tensor:
        for index, (weight, bias) in enumerate(self.layers):
            row = linear(relu(row) if index else row, weight, bias)
        return row

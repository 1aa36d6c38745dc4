"""Output heads: hidden states to logits of all ids or of a few, or to the values of a reward model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import linear, pad, relu
from transformers import PreTrainedModel

from qpdsl.executor.kernels.plain.linear import PADDED_ROWS, PackedLinear
from qpdsl.executor.requests.errors import UnsupportedModel

# Bytes of the second copy that packing makes. The weights stay as they are, for the embedding and for `gather`.
_MAX_COPY = 1 << 30
# A linear layer: weight [out, in], and bias [out] or None.
Layer = tuple[torch.Tensor, torch.Tensor | None]


class LogitHead:
    """Hidden states to logits, with what some architectures do after the projection (soft-cap, scale)."""

    def __init__(self, model: PreTrainedModel) -> None:
        projection = model.get_output_embeddings()
        if not isinstance(projection, torch.nn.Linear):
            raise UnsupportedModel("it has no linear output head, so it is no causal language model")
        self.projection = projection
        self.packed: PackedLinear | None = None
        self.width = projection.out_features
        config = model.config.get_text_config()
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self.scale: float = getattr(config, "logit_scale", None) or 1.0
        self.scale /= getattr(config, "logits_scaling", None) or 1.0

    def pack(self) -> None:
        """Makes a copy of the head in a layout for the CPU, unless it would take more than a gigabyte."""
        weight = self.projection.weight
        if weight.numel() * weight.itemsize <= _MAX_COPY:
            self.packed = PackedLinear(weight, self.projection.bias)

    def dense(self, hidden: torch.Tensor, least: int = 1) -> torch.Tensor:
        """Logits float32 [N, V] of hidden states [N, d], computed in `least` rows or more."""
        count = hidden.shape[0]
        if self.packed is None:
            least = max(least, PADDED_ROWS)
        if count < least:
            hidden = pad(hidden, (0, 0, 0, least - count))
        logits = self._finish(self.projection(hidden) if self.packed is None else self.packed(hidden))
        return logits if count >= least else logits[:count]

    def gather(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Logits float32 [N, K] of the given ids int64 [K] only.

        Each logit is a sum of products, not part of a matrix product, so its bits do not depend on N.
        """
        logits = (hidden[:, None, :].float() * self.projection.weight[ids].float()).sum(dim=-1)
        if self.projection.bias is not None:
            logits = logits + self.projection.bias[ids].float()
        return self._finish(logits)

    def _finish(self, logits: torch.Tensor) -> torch.Tensor:
        logits = logits.float()
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


class ValueHead:
    """Hidden states [N, d] to values float32 [N, K]: linear layers with ReLU between them, computed in float32.

    It takes the place of a `LogitHead`; the ids of a `ReadRequest` are then the numbers of its outputs.
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

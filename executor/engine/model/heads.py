"""Both ends of a model: token ids to hidden states, and these to logits, or to the values of a reward model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear, pad, relu

from qpdsl.executor.kernels.data.token_draws import HeadWeights
from qpdsl.executor.kernels.data.weights import FLOATS, FloatWeight, GroupedWeight, Weight, read
from qpdsl.executor.kernels.linear import PackedLinear, StoredLinear
from qpdsl.executor.requests.errors import UnsupportedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from qpdsl.executor.kernels.llvm.panel_head import PanelHead
    from qpdsl.executor.kernels.llvm.panels import Shelf

# What the head's weights are kept as.
HEAD = "head"
# Rows of every product of a value head on a GPU.
_VALUE_ROWS = 64
# A linear layer: weight [out, in], and bias [out] or None.
Layer = tuple[torch.Tensor, torch.Tensor | None]
# Where configurations say the soft cap of logits.
_SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap")


def stored_weight(module: torch.nn.Module) -> Weight | None:
    """The weights of a linear layer of transformers, or of one that holds those of a quantized checkpoint.

    None where it is neither, or where another library keeps them in a form of its own.
    """
    stored = getattr(module, "stored", None)
    if isinstance(stored, FloatWeight | GroupedWeight):
        return stored
    if not isinstance(module, torch.nn.Linear):
        return None
    values = module.weight.detach()
    return FloatWeight(values) if type(values) is torch.Tensor and values.dtype in FLOATS else None


def _sums_stay_wide(hidden: torch.Tensor, layer: torch.nn.Linear) -> bool:
    """Whether torch can give a product of 16-bit numbers on their device as the float32 that it was summed in."""
    dtypes = {hidden.dtype, layer.weight.dtype}
    known = hasattr(torch.ops.aten.mm, "dtype") and type(layer) is torch.nn.Linear
    return known and hidden.is_cuda and dtypes in ({torch.bfloat16}, {torch.float16})


class LogitHead:
    """Hidden states to logits, with what some architectures do after the projection (soft-cap, scale)."""

    def __init__(self, model: PreTrainedModel) -> None:
        projection = model.get_output_embeddings()
        if not isinstance(projection, torch.nn.Linear | StoredLinear):
            raise UnsupportedModel("it has no linear output head, so it is no causal language model")
        self._projection: torch.nn.Linear | StoredLinear | None = projection
        self._packed: PackedLinear | None = None
        self.width: int = projection.out_features
        self.in_features: int = projection.in_features
        config = model.config.get_text_config()
        caps = [getattr(config, name, None) for name in _SOFTCAPS]
        self.softcap: float | None = next((cap for cap in caps if cap), None)
        self.scale: float = getattr(config, "logit_scale", None) or 1.0
        self.scale *= getattr(config, "lm_head_multiplier", None) or 1.0
        self.scale /= getattr(config, "logits_scaling", None) or 1.0

    def pack(self, shelf: Shelf | None = None) -> None:
        """Lays the weights out for the CPU, unless another library keeps them in a form of its own.

        From then on a row's logits do not depend on other rows. `shelf`: see `PanelWeights`.
        """
        weight = None if self._projection is None else stored_weight(self._projection)
        if weight is not None and self._projection is not None:
            self._packed, self._projection = PackedLinear(weight, self._projection.bias, shelf, HEAD), None

    @property
    def packed(self) -> PackedLinear | None:
        """The layer after `pack`."""
        return self._packed

    def drawing(self) -> PanelHead | None:
        """What draws straight from hidden states, after `pack`; None where the layer is not compiled."""
        if self._packed is None or self._packed.product is None:
            return None
        # The compiler need not be installed where other kernels run.
        from qpdsl.executor.kernels.llvm.panel_head import PanelHead

        return PanelHead(self._packed.product, self.scale, self.softcap)

    @property
    def weights(self) -> HeadWeights | None:
        """The weights as one matrix of floats; None where they lie in another form."""
        if self._packed is not None:
            values, bias = self._packed.matrix, self._packed.bias
        else:
            assert self._projection is not None
            stored, bias = stored_weight(self._projection), self._projection.bias
            values = stored.values if isinstance(stored, FloatWeight) else None
        if values is None or values.stride(-1) != 1:
            return None
        return HeadWeights(values, None if bias is None else bias.detach(), self.scale, self.softcap)

    def shares(self, weight: Weight) -> bool:
        """Whether these are the weights of the head, before `pack`."""
        own = None if self._projection is None else stored_weight(self._projection)
        if isinstance(own, FloatWeight) and isinstance(weight, FloatWeight):
            return own.values.data_ptr() == weight.values.data_ptr()
        return own is weight

    def dense(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float32 [N, V] of hidden states [N, d]. Where the device can, they never are of 16 bits."""
        own = self._projection
        if isinstance(own, torch.nn.Linear) and _sums_stay_wide(hidden, own):
            logits = torch.mm(hidden, own.weight.t(), out_dtype=torch.float32)
            return self._finish(logits if own.bias is None else logits.add_(own.bias))
        projection = self._packed or own
        assert projection is not None
        if isinstance(projection, torch.nn.Linear):
            # Some keep the residual stream in float32 (Mamba).
            hidden = hidden.to(projection.weight.dtype)
        return self._finish(projection(hidden))

    def gather(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Logits float32 [N, K] of the given ids int64 [K] only.

        Each logit is a sum of products, not part of a matrix product, so its bits do not depend on N.
        """
        if self._packed is not None:
            rows, bias = self._packed.rows(ids), self._packed.bias
        else:
            own = self._projection
            assert own is not None
            weight, bias = stored_weight(own), None if own.bias is None else own.bias.float()
            if weight is None:
                assert isinstance(own, torch.nn.Linear)
                rows = own.weight[ids].float()
            else:
                rows = weight.select(ids).dequantized()
        logits = (hidden[:, None, :].float() * rows).sum(dim=-1)
        return self._finish(logits if bias is None else logits + bias[ids])

    def _finish(self, logits: torch.Tensor) -> torch.Tensor:
        logits = logits.float()
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


class ValueHead:
    """Hidden states [N, d] to values float32 [N, K]: linear layers with ReLU between them, computed in float32.

    It takes the place of a `LogitHead`; the ids of a `ReadRequest` are then the numbers of its outputs.

    A value's bits do not depend on N. On a CPU every row is a product of its own; a GPU computes `at_once` rows at a
    time, always so many, of which the last may be padding.
    """

    def __init__(self, layers: Sequence[Layer], at_once: int | None = None) -> None:
        self.layers = [(weight.float(), None if bias is None else bias.float()) for weight, bias in layers]
        self.width = self.layers[-1][0].shape[0]
        self._at_once = at_once or (_VALUE_ROWS if self.layers[0][0].is_cuda else 0)

    def dense(self, hidden: torch.Tensor) -> torch.Tensor:
        """Values float32 [N, K]."""
        rows, count = hidden.float(), len(hidden)
        if not self._at_once:
            return torch.stack([self._values(row) for row in rows])
        pieces = torch.split(pad(rows, (0, 0, 0, -count % self._at_once)), self._at_once)
        return torch.cat([self._values(piece) for piece in pieces])[:count]

    def gather(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Values float32 [N, K] of the given outputs int64 [K] only."""
        return self.dense(hidden)[:, ids]

    def _values(self, rows: torch.Tensor) -> torch.Tensor:
        """Of rows [N, d], or of one [d]."""
        for index, (weight, bias) in enumerate(self.layers):
            rows = linear(relu(rows) if index else rows, weight, bias)
        return rows


class TokenEmbedding:
    """Rows of the embedding, times the model's scale, rounded if the model's own module does both.

    Where the head shares its weights they are read from the head's layout, so that memory holds them once.
    """

    def __init__(self, module: torch.nn.Module, scale: float, tied: PackedLinear | None) -> None:
        """`tied`: the head, if it shares the weights; the module may then be dropped.

        Raises LookupError where the module holds no plain weights.
        """
        weight = embedded_weight(module)
        self._scale = scale
        # A module that holds the weights of a quantized checkpoint computes in float32, and so does what multiplies
        # the embeddings elsewhere than in their module.
        self._dtype = torch.float32
        if isinstance(weight, FloatWeight) and hasattr(module, "embed_scale"):
            self._dtype = weight.dtype
        self._tied = tied
        self._weight = read(weight) if tied is None else None

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """float32 [T, d] of `tokens` int64 [T]."""
        if self._tied is not None:
            rows = self._tied.rows(tokens)
        else:
            assert self._weight is not None
            rows = self._weight.select(tokens).dequantized()
        if self._scale != 1.0:
            rows = (rows * self._scale).to(self._dtype).float()
        return rows


def embedded_weight(module: torch.nn.Module) -> Weight:
    """The weights of an embedding. Raises LookupError where another library keeps them in a form of its own."""
    stored = getattr(module, "stored", None)
    if isinstance(stored, FloatWeight | GroupedWeight):
        return stored
    values = getattr(module, "weight", None)
    if not isinstance(values, torch.Tensor) or values.dtype not in FLOATS:
        raise LookupError(type(module).__name__)
    return FloatWeight(values.detach())

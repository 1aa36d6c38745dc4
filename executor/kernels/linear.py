"""Linear layers over weights as a checkpoint holds them.

`PackedLinear` computes on a CPU, and no row's bits depend on another row, nor on the number of threads. `StoredLinear`
and `StoredEmbedding` are what a quantized model is made of when it is loaded: torch computes them, slowly, and faster
layers are made from them and compared with them. Whoever lays `stored` out anew may drop it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear, pad

from qpdsl.executor.kernels.data.weights import FloatWeight, Weight
from qpdsl.executor.kernels.llvm.large_pages import give_back

if TYPE_CHECKING:
    from qpdsl.executor.kernels.llvm.panels import Shelf
    from qpdsl.executor.kernels.llvm.product import Product

# Enough rows for BLAS to sum a row alike for any larger number of them, on every BLAS tried.
PADDED_ROWS = 16
# What transformers' experts say of themselves, in all its releases.
EXPERTS_SAY = ("has_gate", "has_bias", "is_transposed", "num_experts", "down_proj", "_apply_gate")
# So many weights are turned into floats at a time, to stay in the caches.
_AT_ONCE = 1 << 18


class PackedLinear(torch.nn.Module):
    """y = x·Wᵀ + b on a CPU, computed in float32, by compiled code where the machine has vectors.

    Elsewhere torch computes it, in float32 and at least `PADDED_ROWS` rows.
    """

    def __init__(
        self, weight: Weight, bias: torch.Tensor | None = None, shelf: Shelf | None = None, name: str = ""
    ) -> None:
        """Lays the weights [out, in] out anew; `bias` [out]; `shelf` and `name`: see `PanelWeights`."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.kind = weight.kind
        self.product = _compiled(weight, bias, shelf, name)
        self._bias = None if bias is None else bias.detach().float()
        self._weight: torch.Tensor | None = None
        if self.product is None:
            self._weight = weight.values.detach().clone() if isinstance(weight, FloatWeight) else weight.dequantized()

    @property
    def bias(self) -> torch.Tensor | None:
        """float32 [out]; None for none."""
        return self._bias

    @property
    def matrix(self) -> torch.Tensor | None:
        """The weights [out, in] of a layer that torch computes; None where it is compiled."""
        return self._weight

    @property
    def nbytes(self) -> int:
        """What the weights take in memory."""
        if self.product is not None:
            return self.product.weights.nbytes
        assert self._weight is not None
        return self._weight.numel() * self._weight.itemsize

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [..., in] to [..., out], in their own type."""
        rows = hidden.reshape(-1, self.in_features).float()
        if self.product is not None:
            out = self.product(rows if rows.stride(-1) == 1 else rows.contiguous())
        else:
            out = self._by_torch(rows)
        return out.to(hidden.dtype).view(*hidden.shape[:-1], self.out_features)

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """The weights float32 [n, in] of some outputs int64 [n]: of a tied embedding, or to compute a few logits."""
        if self.product is not None:
            return self.product.weights.rows(outputs)
        assert self._weight is not None
        return self._weight[outputs].float()

    def _by_torch(self, rows: torch.Tensor) -> torch.Tensor:
        assert self._weight is not None
        count = rows.shape[0]
        padded = pad(rows, (0, 0, 0, max(0, PADDED_ROWS - count)))
        return linear(padded, self._weight.float(), self._bias)[:count]


def _compiled(weight: Weight, bias: torch.Tensor | None, shelf: Shelf | None, name: str) -> Product | None:
    try:
        # The compiler need not be installed where other kernels run.
        from qpdsl.executor.kernels.llvm.compile import vector_width
        from qpdsl.executor.kernels.llvm.panels import PanelWeights
        from qpdsl.executor.kernels.llvm.product import Product
    except ImportError:
        return None
    width = vector_width()
    if not width:
        return None
    try:
        return Product(PanelWeights(weight, width, shelf, name), bias)
    except LookupError:
        return None


class StoredLinear(torch.nn.Module):
    """y = x·Wᵀ + b with W = `stored` [out, in] and `bias` float32 [out] or None, computed in float32."""

    bias: torch.Tensor | None

    def __init__(self, stored: Weight, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.stored = stored
        self.out_features, self.in_features = stored.shape
        # Some models ask for the type or the device of weights.
        self.weight = torch.empty(0)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [..., in] to [..., out], in their own type."""
        rows = hidden.reshape(-1, self.in_features).float()
        count = max(1, _AT_ONCE // self.in_features)
        pieces = (self.stored.select(slice(start, start + count)) for start in range(0, self.out_features, count))
        out = torch.cat([linear(rows, piece.dequantized()) for piece in pieces], dim=1)
        if self.bias is not None:
            out = out + self.bias
        return out.to(hidden.dtype).view(*hidden.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.stored.kind}"


class StoredEmbedding(torch.nn.Module):
    """Embeddings that are rows of `stored` [ids, d], times a `scale`."""

    def __init__(self, stored: Weight, scale: float = 1.0) -> None:
        super().__init__()
        self.stored = stored
        self.scale = scale
        self.weight = torch.empty(0)
        self.num_embeddings, self.embedding_dim = stored.shape

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings float32 [..., d] of ids int64 [...]."""
        rows = self.stored.select(ids.flatten()).dequantized()
        return (rows if self.scale == 1.0 else rows * self.scale).view(*ids.shape, self.embedding_dim)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.stored.kind}"


class StoredExperts(torch.nn.Module):
    """Experts over weights as a checkpoint holds them, of a module `own` that is built as transformers' experts are.

    stored: by the names of `own`'s parameters, the weights [out, in] of each expert
    biases: float32 [E, out], by their names; none where it has none
    """

    def __init__(
        self, own: torch.nn.Module, stored: Mapping[str, list[Weight]], biases: Mapping[str, torch.Tensor]
    ) -> None:
        """The parameters of `own` are taken out of it; it still says what is computed with them."""
        super().__init__()
        for name in (*stored, *biases):
            delattr(own, name)
        self.own = own
        self.stored: dict[str, list[Weight]] = dict(stored)
        self.biases: dict[str, torch.Tensor] = dict(biases)

    @staticmethod
    def fits(module: torch.nn.Module) -> bool:
        """Whether a module is built so, with all its parameters in three dimensions."""
        if not all(hasattr(module, fact) for fact in EXPERTS_SAY) or not isinstance(
            module.down_proj, torch.nn.Parameter
        ):
            return False
        return module.down_proj.dim() == 3

    @property
    def kind(self) -> str:
        return self.stored["down_proj"][0].kind

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """The sums [T, d] of what the experts `top_k_index` int64 [T, k] make of `hidden_states` [T, d], by weight."""
        own: Any = self.own
        first = "gate_up_proj" if own.has_gate else "up_proj"
        total = torch.zeros_like(hidden_states, dtype=torch.float32)
        for expert in sorted(set(top_k_index.flatten().tolist())):
            # Some routers send a row that needs one expert less to a number that none has.
            if expert >= own.num_experts:
                continue
            rows, places = (top_k_index == expert).nonzero(as_tuple=True)
            widened = self._product(first, expert, hidden_states[rows].float())
            out = self._product("down_proj", expert, (own._apply_gate if own.has_gate else own.act_fn)(widened))
            out = normed_after(own, out)
            total.index_add_(0, rows, out * top_k_weights[rows, places, None].float())
        return total.to(hidden_states.dtype)

    def _product(self, name: str, expert: int, rows: torch.Tensor) -> torch.Tensor:
        biases = self.biases.get(f"{name}_bias")
        return linear(rows, self.stored[name][expert].dequantized(), None if biases is None else biases[expert])


def normed_after(experts: Any, rows: torch.Tensor) -> torch.Tensor:
    """What an expert made of some rows, with the norm that comes after it where there is one."""
    normed: torch.Tensor = experts.post_expert_norm(rows) if hasattr(experts, "post_expert_norm") else rows
    return normed


def empty(module: torch.nn.Module) -> None:
    """Drops the weights of a layer or an embedding, which are laid out elsewhere."""
    stored = getattr(module, "stored", None)
    if stored is not None:
        if isinstance(stored, FloatWeight) and stored.mapped:
            give_back(stored.values)
        module.stored = FloatWeight(torch.empty(0, 0))  # type: ignore[assignment]
    else:
        module.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)


def stored_parameters(model: torch.nn.Module) -> int:
    """How many weights the layers of a model hold in this way; those of a tied head and embedding count once."""
    weights: list[Weight] = []
    for module in model.modules():
        if isinstance(module, StoredLinear | StoredEmbedding):
            weights.append(module.stored)
        elif isinstance(module, StoredExperts):
            weights += [weight for layer in module.stored.values() for weight in layer]
    return sum(rows * columns for rows, columns in {id(weight): weight.shape for weight in weights}.values())

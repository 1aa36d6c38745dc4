"""Reads a model of a known family off transformers' modules, as the plain data of `decoder.py`.

What differs between families is a row of `_FAMILIES`; what is alike is found by its name. Nothing is guessed: a module
with a part that the description does not cover raises LookupError, and such a model runs transformers' modules. What
few tokens do not show is read from the modules and the recorded calls of attention: the windows, the position encoding
of each layer, and the layers that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from qpdsl.executor.engine.model.decoder import (
    Attention,
    Decoder,
    DecoderShape,
    GatedMlp,
    HeadCounts,
    HeadNorms,
    Layer,
    Norm,
    Projection,
)
from qpdsl.executor.engine.model.heads import stored_weight
from qpdsl.executor.engine.model.module_stack import AttentionCall
from qpdsl.executor.kernels.data.layer_constants import Activation
from qpdsl.executor.kernels.data.weights import joined
from qpdsl.executor.kernels.linear import StoredEmbedding, StoredLinear, empty

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Names of a layer's norms: before attention, after it, before the MLP, after it.
_Norms = tuple[str | None, str | None, str | None, str | None]
_BEFORE: _Norms = ("input_layernorm", None, "post_attention_layernorm", None)
_AFTER: _Norms = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")
_GEMMA2: _Norms = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
_GLM4: _Norms = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")

_ACTIVATIONS: dict[str, Activation] = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
}
# Position encodings that are a table: they depend on the position alone.
_ROTARY = {"default", "linear", "llama3", "yarn"}


@dataclass(frozen=True, slots=True)
class _Family:
    """What a family has that others do not.

    norm_offset:      is added to the weights of norms
    neighbours:       the numbers of a pair that is rotated together are neighbours; elsewhere they come in two halves
    scaled_embedding: embeddings are multiplied in their own module
    multipliers:      the model multiplies embeddings, and layers what they add to the residual stream
    rotates:          whether an attention module rotates queries and keys
    """

    norms: _Norms = _BEFORE
    norm_offset: float = 0.0
    neighbours: bool = False
    scaled_embedding: bool = False
    multipliers: bool = False
    rotates: Callable[[Any], bool] = lambda attention: True


_LLAMA = _Family()
_FAMILIES = {
    "cwm": _LLAMA,
    "ernie4_5": _Family(neighbours=True),
    "exaone4": _Family(
        norms=_AFTER, rotates=lambda attention: attention.sliding_window is None or attention.is_sliding
    ),
    "gemma": _Family(norm_offset=1.0, scaled_embedding=True),
    "gemma2": _Family(norms=_GEMMA2, norm_offset=1.0, scaled_embedding=True),
    "gemma3_text": _Family(norms=_GEMMA2, norm_offset=1.0, scaled_embedding=True),
    "glm": _Family(neighbours=True),
    "glm4": _Family(norms=_GLM4, neighbours=True),
    "granite": _Family(multipliers=True),
    "helium": _Family(neighbours=True),
    "hyperclovax": _Family(
        norms=("input_layernorm", "post_norm1", "post_attention_layernorm", "post_norm2"), multipliers=True
    ),
    "internlm3": _LLAMA,
    "iquestcoder": _LLAMA,
    "llama": _LLAMA,
    "ministral": _LLAMA,
    "mistral": _LLAMA,
    "olmo2": _Family(norms=_AFTER),
    "olmo3": _Family(norms=_AFTER),
    "phi3": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "seed_oss": _LLAMA,
    "smollm3": _Family(rotates=lambda attention: bool(attention.use_rope)),
    "vaultgemma": _Family(
        norms=("input_layernorm", None, "pre_feedforward_layernorm", None), norm_offset=1.0, scaled_embedding=True
    ),
}


def describe(inner: torch.nn.Module, config: PretrainedConfig, calls: Sequence[AttentionCall]) -> Decoder:
    """A transformers model without its head, as plain data.

    `config` is that of its text model, `calls` are the calls of attention in a forward, by layer. All layers have the
    same norms, epsilons and activation. Raises LookupError where the model is not built as its family is, or weights of
    a layer cannot be joined; no layer does later.
    """
    # With images, which no text here has, Gemma 3 is its text model and another that sees.
    text_model = inner.language_model if type(inner).__name__ == "Gemma3Model" else inner
    try:
        return _ModuleDecoder(text_model, config, calls)
    except (AttributeError, RuntimeError, TypeError) as error:
        # Something that all of the family have is not there, or not the same for all layers.
        raise LookupError(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Parts:
    """A layer whose products are as the model has them: apart, and with the model's order of heads."""

    joined: list[Projection]
    out: Projection
    widen: list[Projection]
    down: Projection
    activation: Activation
    norms: list[Norm | None]
    head_norms: HeadNorms | None
    rotation: int | None

    @property
    def kind(self) -> tuple[object, ...]:
        """What all layers of a model have in common."""
        epsilons = [None if norm is None else norm.epsilon for norm in self.norms]
        heads = None if self.head_norms is None else (self.head_norms.epsilon, self.head_norms.whole)
        return self.activation, heads, *epsilons

    def check(self, attended: torch.Tensor) -> None:
        """Joins no outputs of the weights, and puts the inputs of none in another order. Raises LookupError."""
        outputs = torch.empty(0, dtype=torch.int64)
        try:
            for products in (self.joined, self.widen):
                joined([product.weight.select(outputs) for product in products])
            self.out.weight.select(outputs).select_inputs(attended)
        except ValueError as error:
            raise LookupError(str(error)) from error


class _ModuleDecoder:
    """The `Decoder` over the modules of a model."""

    def __init__(self, inner: Any, config: PretrainedConfig, calls: Sequence[AttentionCall]) -> None:
        if config.model_type not in _FAMILIES:
            raise LookupError(config.model_type)
        _expect(inner, {"embed_tokens", "layers", "norm", "rotary_emb"})
        if len(inner.layers) != len(calls):
            raise LookupError("layers")
        self._family = family = _FAMILIES[config.model_type]
        self._modules = inner.layers
        self._calls = list(calls)
        self._rotary = _Rotary(inner.rotary_emb, config)
        # Whoever keeps this keeps none of the layers' modules, and so not the file that their weights are mapped from.
        self.rotations = self._rotary.tables
        counts = _head_counts(calls, self._rotary.width)
        self.shape = DecoderShape(config.hidden_size, config.intermediate_size, counts)
        self.layers = len(self._calls)
        self.norm = self._norm(inner.norm)
        self.embedding_scale = _embedding_scale(inner, family)
        self.residual_scale = 1.0
        if family.multipliers:
            self.residual_scale = _only({float(module.residual_multiplier) for module in inner.layers}, "multipliers")
        # Numbers of the model's query heads, in the order of `Attention`, and of its key heads and values.
        fold, kv_heads, dim = counts.fold, counts.kv_heads, counts.dim
        turned = torch.arange(counts.rotated)
        if not family.neighbours:
            turned = turned.view(2, -1).t().flatten()
        within = torch.cat((turned, torch.arange(counts.rotated, dim)))
        queries = torch.arange(kv_heads * fold * dim).view(kv_heads, fold, dim).transpose(0, 1)
        values = torch.arange(kv_heads * dim).view(kv_heads, dim)
        self._queries, self._keys = queries[..., within].flatten(), values[..., within].flatten()
        self._values, self._attended = values.flatten(), queries.flatten()
        # Once some layers are emptied it would be too late.
        layers = [self._parts(index) for index in range(self.layers)]
        _only({parts.kind for parts in layers}, "layers")
        for parts in layers:
            parts.check(self._attended)

    def layer(self, index: int) -> Layer:
        parts, call = self._parts(index), self._calls[index]
        queries, keys = len(self._queries), len(self._keys)
        order = torch.cat((self._queries, queries + self._keys, queries + keys + self._values))
        projected = _joined(parts.joined)
        attention = Attention(
            Projection(projected.weight.select(order), None if projected.bias is None else projected.bias[order]),
            Projection(parts.out.weight.select_inputs(self._attended), parts.out.bias),
            parts.head_norms,
            parts.rotation,
            call.scaling,
            call.window,
            call.softcap,
        )
        return Layer(attention, GatedMlp(_joined(parts.widen), parts.down, parts.activation), *parts.norms)

    def release(self, index: int) -> None:
        for part in self._modules[index].modules():
            if isinstance(part, torch.nn.Linear | StoredLinear):
                empty(part)

    def _parts(self, index: int) -> _Parts:
        """Raises LookupError where the layer has other parts than these."""
        module = self._modules[index]
        norms = [None if name is None else getattr(module, name) for name in self._family.norms]
        present = {name for name, norm in zip(self._family.norms, norms, strict=True) if name and not _idle(norm)}
        _expect(module, {"self_attn", "mlp", *present})
        attention, mlp = module.self_attn, module.mlp
        hidden, intermediate = self.shape.hidden, self.shape.intermediate
        queries, keys = len(self._queries), len(self._keys)
        projected = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        if hasattr(attention, "qkv_proj"):
            projected = {"qkv_proj": queries + 2 * keys}
        head_norms = {"q_norm", "k_norm"} if hasattr(attention, "q_norm") else set()
        _expect(attention, {*projected, *head_norms, "o_proj"})
        widened = {"gate_proj": intermediate, "up_proj": intermediate}
        if hasattr(mlp, "gate_up_proj"):
            widened = {"gate_up_proj": 2 * intermediate}
        activation = "act_fn" if hasattr(mlp, "act_fn") else "activation_fn"
        _expect(mlp, {*widened, "down_proj", activation})
        return _Parts(
            [_product(getattr(attention, name), outputs, hidden) for name, outputs in projected.items()],
            _product(attention.o_proj, hidden, queries),
            [_product(getattr(mlp, name), outputs, hidden) for name, outputs in widened.items()],
            _product(mlp.down_proj, hidden, intermediate),
            _ACTIVATIONS[type(getattr(mlp, activation)).__name__],
            [None if _idle(norm) else self._norm(norm) for norm in norms],
            self._head_norms(attention) if head_norms else None,
            self._rotary.of_layer(index) if self._family.rotates(attention) else None,
        )

    def _head_norms(self, module: Any) -> HeadNorms:
        query, key = self._norm(module.q_norm), self._norm(module.k_norm)
        counts = self.shape.heads
        each, all_heads = (counts.dim, counts.dim), (len(self._queries), len(self._keys))
        lengths = len(query.weight), len(key.weight)
        if lengths not in (each, all_heads):
            raise LookupError("norms of heads")
        weights = (
            query.weight.repeat(all_heads[0] // lengths[0])[self._queries],
            key.weight.repeat(all_heads[1] // lengths[1])[self._keys],
        )
        epsilon = _only({query.epsilon, key.epsilon}, "epsilons")
        return HeadNorms(torch.cat(weights).view(-1, counts.kv_heads, counts.dim), epsilon, lengths != each)

    def _norm(self, module: Any) -> Norm:
        name = type(module).__name__
        epsilon = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)
        if not name.endswith("RMSNorm") or epsilon is None or module.weight is None or module.weight.dim() != 1:
            raise LookupError(name)
        return Norm(module.weight.detach().float() + self._family.norm_offset, float(epsilon))


class _Rotary:
    """The tables of a model's position encoding: one, or one for each type of layer."""

    def __init__(self, module: Any, config: PretrainedConfig) -> None:
        kinds = module.rope_type
        self._module = module
        self._types: list[str | None] = sorted(kinds) if isinstance(kinds, dict) else [None]
        self._layer_types: list[str] = config.layer_types if isinstance(kinds, dict) else []
        if not set(kinds.values() if isinstance(kinds, dict) else [kinds]) <= _ROTARY:
            raise LookupError(f"position encoding {kinds}")
        # How many numbers of a head are rotated.
        self.width = 2 * _only({table.shape[1] for table in self.tables(1)}, "rotations")

    def of_layer(self, index: int) -> int:
        """Which of the tables the layer uses."""
        if not self._layer_types:
            return 0
        if self._layer_types[index] not in self._types:
            raise LookupError(self._layer_types[index])
        return self._types.index(self._layer_types[index])

    def tables(self, positions: int) -> list[torch.Tensor]:
        """See `Decoder.rotations`."""
        return [self._table(kind, positions) for kind in self._types]

    def _table(self, kind: str | None, positions: int) -> torch.Tensor:
        chosen = {} if kind is None else {"layer_type": kind}
        numbers = torch.arange(positions)[None]
        cos, sin = self._module(torch.empty(0, dtype=torch.float32), position_ids=numbers, **chosen)
        table = torch.stack((cos[0], sin[0]), dim=-1)
        half = table.shape[1] // 2
        # Both numbers of a pair have the same angle, in families with neighbours too.
        if table.shape[1] % 2 or not torch.equal(table[:, :half], table[:, half:]):
            raise LookupError("rotations")
        return table[:, :half].contiguous()


def _head_counts(calls: Sequence[AttentionCall], rotated: int) -> HeadCounts:
    if any(call.sinks or call.alibi or call.chunk or call.owner != call.layer for call in calls):
        raise LookupError("attention with more than a window and a cap")
    heads, kv_heads, *dims = _only({call.shape for call in calls}, "heads")
    dim = _only(set(dims), "widths of heads")
    if heads % kv_heads or rotated > dim:
        raise LookupError("heads")
    return HeadCounts(heads // kv_heads, kv_heads, dim, rotated)


def _only(values: set[Any], what: str) -> Any:
    """The value that all have. Raises LookupError where there are others."""
    if len(values) != 1:
        raise LookupError(f"{what} of several kinds")
    return next(iter(values))


def _idle(part: torch.nn.Module | None) -> bool:
    """Whether it does nothing but in training."""
    return part is None or isinstance(part, torch.nn.Dropout | torch.nn.Identity)


def _expect(module: torch.nn.Module, names: set[str]) -> None:
    """Raises LookupError where a module has other modules and parameters than those named."""
    found = {name for name, part in module.named_children() if not _idle(part)}
    found |= {name for name, _ in module.named_parameters(recurse=False)}
    if other := names ^ found:
        raise LookupError(f"{type(module).__name__}: {', '.join(sorted(other))}")


def _product(module: Any, outputs: int, inputs: int) -> Projection:
    """A linear module of transformers, or one that holds the weights of a quantized checkpoint. Raises LookupError."""
    weight = stored_weight(module)
    # What derives from a linear layer may compute something else.
    derived = isinstance(module, torch.nn.Linear) and type(module) is not torch.nn.Linear
    if weight is None or derived or weight.shape != (outputs, inputs):
        raise LookupError(type(module).__name__)
    return Projection(weight, None if module.bias is None else module.bias.detach().float())


def _joined(products: Sequence[Projection]) -> Projection:
    """Products of the same inputs as one; a missing bias is 0 where others have one."""
    weight = joined([product.weight for product in products])
    if all(product.bias is None for product in products):
        return Projection(weight)
    device = next(product.bias.device for product in products if product.bias is not None)
    biases = [
        torch.zeros(product.weight.shape[0], dtype=torch.float32, device=device)
        if product.bias is None
        else product.bias
        for product in products
    ]
    return Projection(weight, torch.cat(biases))


def _embedding_scale(inner: Any, family: _Family) -> float:
    if family.multipliers:
        return float(inner.embedding_multiplier)
    if not family.scaled_embedding:
        return 1.0
    module = inner.embed_tokens
    if isinstance(module, StoredEmbedding):
        return module.scale
    # Its module rounds the scale to the type of the weights.
    return float(module.embed_scale.to(module.weight.dtype))

"""Reads a model of a known family off transformers' modules, as the plain data of `decoder.py`.

What differs between families is a row of `_FAMILIES`; what is alike is found by its name. Nothing is guessed: a module
with a part that the description does not cover raises LookupError, and such a model runs transformers' modules. What
few tokens do not show is read from the modules and the recorded calls of attention: the windows, the position encoding
of each layer, and the layers that have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from qpdsl.executor.engine.model.decoder import (
    Attention,
    Decoder,
    DecoderShape,
    HeadCounts,
    HeadNorms,
    Layer,
    Mlp,
    Norm,
    Projection,
    Recurrence,
    joined_projections,
)
from qpdsl.executor.engine.model.heads import stored_weight
from qpdsl.executor.engine.model.mixers import Mixers
from qpdsl.executor.engine.model.mixers.mixer import ProjectedMixer
from qpdsl.executor.engine.model.module_stack import AttentionCall
from qpdsl.executor.kernels.data.layer_constants import UNGATED, Activation
from qpdsl.executor.kernels.data.weights import joined
from qpdsl.executor.kernels.linear import StoredEmbedding, StoredLinear, empty

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from qpdsl.executor.engine.model.rowwise import RowwiseExperts

# Names of a layer's norms: before its mixer, after it, before the MLP, after it.
_Norms = tuple[str | None, str | None, str | None, str | None]
_BEFORE: _Norms = ("input_layernorm", None, "post_attention_layernorm", None)
_AFTER: _Norms = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")
_GEMMA2: _Norms = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
_BAMBA: _Norms = ("input_layernorm", None, "pre_ff_layernorm", None)
_GLM4: _Norms = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")

_ACTIVATIONS: dict[str, Activation] = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "ReLUSquaredActivation": "relu2",
}
# Names of the first products of an MLP: gate and `up`, or both as one, or `up` alone.
_WIDENED = (("gate_up_proj",), ("input_linear",), ("gate_proj", "up_proj"), ("w1", "w3"), ("up_proj",))
# MLPs that have an activation in their code, and no module for it.
_IN_CODE = {"Lfm2MLP": "SiLU", "Lfm2MoeMLP": "SiLU"}
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
    attention:        the name of a layer's attention
    recurrence:       likewise, where layers have one in its place or beside it
    mlp:              likewise; it may be a mixture of experts
    beside:           the name of a mixture of experts that adds to it, where layers have one
    single:           a layer has one of these, with the first of the norms before it
    embedding:        the name of the embedding, and of the last norm
    last_norm:
    gated:            the projection of a head's queries makes its gate too
    """

    norms: _Norms = _BEFORE
    norm_offset: float = 0.0
    neighbours: bool = False
    scaled_embedding: bool = False
    multipliers: bool = False
    rotates: Callable[[Any], bool] = lambda attention: True
    attention: str = "self_attn"
    recurrence: str | None = None
    mlp: str = "mlp"
    beside: str | None = None
    single: bool = False
    embedding: str = "embed_tokens"
    last_norm: str = "norm"
    gated: bool = False


_LLAMA = _Family()
_MIXERS = _Family(
    norms=("norm", None, "norm", None),
    attention="mixer",
    recurrence="mixer",
    mlp="mixer",
    single=True,
    embedding="embeddings",
    last_norm="norm_f",
)
_LFM2 = _Family(
    norms=("operator_norm", None, "ffn_norm", None),
    recurrence="conv",
    mlp="feed_forward",
    last_norm="embedding_norm",
)
_DELTA = _Family(norm_offset=1.0, recurrence="linear_attn", gated=True)
_FAMILIES = {
    "bamba": _Family(norms=_BAMBA, recurrence="mamba", mlp="feed_forward", last_norm="final_layernorm"),
    "cwm": _LLAMA,
    "ernie4_5": _Family(neighbours=True),
    "exaone4": _Family(
        norms=_AFTER, rotates=lambda attention: attention.sliding_window is None or attention.is_sliding
    ),
    "falcon_h1": _Family(norms=_BAMBA, recurrence="mamba", mlp="feed_forward", last_norm="final_layernorm"),
    "gemma": _Family(norm_offset=1.0, scaled_embedding=True),
    "gemma2": _Family(norms=_GEMMA2, norm_offset=1.0, scaled_embedding=True),
    "gemma3_text": _Family(norms=_GEMMA2, norm_offset=1.0, scaled_embedding=True),
    "glm": _Family(neighbours=True),
    "glm4": _Family(norms=_GLM4, neighbours=True),
    "granite": _Family(multipliers=True),
    "granitemoehybrid": _Family(multipliers=True, recurrence="mamba", mlp="shared_mlp", beside="block_sparse_moe"),
    "helium": _Family(neighbours=True),
    "hyperclovax": _Family(
        norms=("input_layernorm", "post_norm1", "post_attention_layernorm", "post_norm2"), multipliers=True
    ),
    "internlm3": _LLAMA,
    "iquestcoder": _LLAMA,
    "lfm2": _LFM2,
    "lfm2_moe": _LFM2,
    "llama": _LLAMA,
    "mamba2": _MIXERS,
    "ministral": _LLAMA,
    "mistral": _LLAMA,
    "nemotron_h": _MIXERS,
    "olmo2": _Family(norms=_AFTER),
    "olmo3": _Family(norms=_AFTER),
    "phi3": _LLAMA,
    "qwen2": _LLAMA,
    "qwen2_5_vl_text": _LLAMA,
    "qwen2_vl_text": _LLAMA,
    "qwen3_vl_text": _LLAMA,
    "qwen3": _LLAMA,
    "qwen3_5_moe_text": _DELTA,
    "qwen3_5_text": _DELTA,
    "qwen3_next": _DELTA,
    "seed_oss": _LLAMA,
    "smollm3": _Family(rotates=lambda attention: bool(attention.use_rope)),
    "vaultgemma": _Family(
        norms=("input_layernorm", None, "pre_feedforward_layernorm", None), norm_offset=1.0, scaled_embedding=True
    ),
}


def describe(inner: torch.nn.Module, config: PretrainedConfig, calls: Sequence[AttentionCall]) -> Decoder:
    """A transformers model without its head, as plain data.

    `config` is that of its text model, `calls` are the calls of attention in a forward, by layer. Raises LookupError
    where the model is not built as its family is, or weights of a layer cannot be joined; no layer does later.
    """
    # What also sees or hears has its text model under one of these names.
    parts = (getattr(inner, name, None) for name in ("language_model", "text_model"))
    text_model = next((part for part in parts if part is not None), inner)
    try:
        return _ModuleDecoder(text_model, config, calls)
    except (AttributeError, RuntimeError, TypeError) as error:
        # Something that all of the family have is not there, or not the same for all layers.
        raise LookupError(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Attention:
    """Attention whose products are as the model has them: apart, and with the model's order of heads."""

    joined: list[Projection]
    out: Projection
    norms: HeadNorms | None
    rotation: int | None
    scale: float


@dataclass(frozen=True, slots=True)
class _Mlp:
    widen: list[Projection]
    down: Projection
    activation: Activation
    gate_scale: float


@dataclass(frozen=True, slots=True)
class _Recurrence:
    joined: list[Projection]
    out: Projection
    mixer: ProjectedMixer


@dataclass(frozen=True, slots=True)
class _Parts:
    """A layer as the model has it. `norms`: those of parts that it has, by their places.

    `experts`: the modules in place of its MLP.
    """

    attention: _Attention | None
    recurrence: _Recurrence | None
    mlp: _Mlp | None
    experts: list[torch.nn.Module]
    norms: dict[int, Norm | None]

    def check(self, attended: torch.Tensor) -> None:
        """Joins no outputs of the weights, and puts the inputs of none in another order. Raises LookupError."""
        outputs = torch.empty(0, dtype=torch.int64)
        first = [
            *(self.attention.joined if self.attention else ()),
            *(self.recurrence.joined if self.recurrence else ()),
        ]
        try:
            for products in (first, self.mlp.widen if self.mlp else []):
                if products:
                    joined([product.weight.select(outputs) for product in products])
            if self.attention is not None:
                self.attention.out.weight.select(outputs).select_inputs(attended)
        except ValueError as error:
            raise LookupError(str(error)) from error


class _ModuleDecoder:
    """The `Decoder` over the modules of a model."""

    def __init__(self, inner: Any, config: PretrainedConfig, calls: Sequence[AttentionCall]) -> None:
        if config.model_type not in _FAMILIES:
            raise LookupError(config.model_type)
        self._family = family = _FAMILIES[config.model_type]
        turning = {name for name in ("rotary_emb", "pos_emb") if getattr(inner, name, None) is not None}
        rotary = getattr(inner, next(iter(turning))) if turning else None
        _expect(inner, {family.embedding, "layers", family.last_norm, *turning})
        self._modules = inner.layers
        self._calls = {call.layer: call for call in calls}
        mixers = Mixers.of(inner, config, torch.float32)
        self.states = None if mixers is None else mixers.layout
        self._mixers = {} if mixers is None else {mixer.layer: mixer for mixer in mixers.mixers}
        self._rotary = None if rotary is None else _Rotary(rotary, config)
        # Whoever keeps this keeps none of the layers' modules, and so not the file that their weights are mapped from.
        self.rotations = _unrotated if self._rotary is None else self._rotary.tables
        counts = _head_counts(calls, 0 if self._rotary is None else self._rotary.width)
        self._hidden, self._heads = config.hidden_size, counts
        self.layers = len(inner.layers)
        self.norm = self._norm(getattr(inner, family.last_norm))
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
        self.shape = self._common(layers)
        for parts in layers:
            parts.check(self._attended)
        self.has_experts = any(parts.experts for parts in layers)
        # Modules without code have none, and no experts.
        self._dtype: torch.dtype = getattr(inner, "dtype", torch.float32)
        self._experts: dict[int, RowwiseExperts] = {}

    def layer(self, index: int) -> Layer:
        parts = self._parts(index)
        recurrence = mlp = None
        if (own := parts.recurrence) is not None:
            joined = joined_projections(own.joined)
            if (found := own.mixer.rule(joined.weight.shape[0])) is None:
                recurrence = Recurrence(joined, own.out, own.mixer.between)
            else:
                rule, order = found
                recurrence = Recurrence(_ordered(joined, order), own.out, rule)
        if parts.mlp is not None:
            mlp = Mlp(joined_projections(parts.mlp.widen), parts.mlp.down, parts.mlp.activation)
        attention = None if parts.attention is None else self._ordered(parts.attention, self._calls[index])
        if parts.experts:
            # It imports transformers' modules, which other models do without.
            from qpdsl.executor.engine.model.rowwise import RowwiseExperts

            self._experts[index] = RowwiseExperts(parts.experts, self._hidden, self._dtype)
        return Layer(
            attention, recurrence, mlp, self._experts.get(index), *(parts.norms.get(place) for place in range(4))
        )

    def release(self, index: int) -> None:
        running: set[torch.nn.Module] = set()
        if (experts := self._experts.pop(index, None)) is not None:
            experts.keep()
            running.update(experts.modules())
        for part in self._modules[index].modules():
            if isinstance(part, torch.nn.Linear | StoredLinear) and part not in running:
                empty(part)

    def undo(self) -> None:
        for experts in self._experts.values():
            experts.undo()
        self._experts = {}

    def _ordered(self, parts: _Attention, call: AttentionCall) -> Attention:
        return Attention(
            _ordered(joined_projections(parts.joined), self._order()),
            replace(parts.out, weight=parts.out.weight.select_inputs(self._attended)),
            parts.norms,
            parts.rotation,
            call.scaling * parts.scale,
            call.window,
            call.softcap,
            self._family.gated,
        )

    def _order(self) -> torch.Tensor:
        """Which of the projections of a layer comes where in the order of `Attention`."""
        queries, keys, gates = self._queries, len(self._keys), self._attended[:0]
        if self._family.gated:
            # A head's queries and then its gate.
            dim = self._heads.dim
            gates = self._attended // dim * 2 * dim + dim + self._attended % dim
            queries = queries // dim * 2 * dim + queries % dim
        begin = len(queries) + len(gates)
        return torch.cat((queries, begin + self._keys, begin + keys + self._values, gates))

    def _common(self, layers: Sequence[_Parts]) -> DecoderShape:
        """Raises LookupError where the layers differ."""
        present: list[bool] = []
        for place in range(4):
            found = {parts.norms[place] is not None for parts in layers if place in parts.norms}
            present.append(_only(found or {False}, "norms"))
        norms = [norm for parts in layers for norm in (*parts.norms.values(), self.norm) if norm is not None]
        heads = [parts.attention.norms for parts in layers if parts.attention is not None]
        mlps = [parts.mlp for parts in layers if parts.mlp is not None]
        return DecoderShape(
            self._hidden,
            _only({mlp.down.weight.shape[1] for mlp in mlps} or {0}, "MLPs"),
            self._heads,
            (present[0], present[1], present[2], present[3]),
            _only({norm.epsilon for norm in norms}, "epsilons"),
            _only({mlp.activation for mlp in mlps} or {"silu"}, "activations"),
            _only({None if norm is None else (norm.epsilon, norm.whole) for norm in heads or [None]}, "norms of heads"),
            _only({call.softcap for call in self._calls.values()} or {None}, "soft caps"),
            self._family.gated,
            _only({mlp.gate_scale for mlp in mlps} or {1.0}, "gates"),
        )

    def _parts(self, index: int) -> _Parts:
        """Raises LookupError where the layer has other parts than these."""
        module, family = self._modules[index], self._family
        attends, recurs = index in self._calls, index in self._mixers
        has_mlp = not family.single or not (attends or recurs)
        beside = {family.beside} if family.beside and getattr(module, family.beside, None) is not None else set()
        names = {
            *beside,
            *({family.attention} if attends else ()),
            *({family.recurrence} if recurs and family.recurrence else ()),
            *({family.mlp} if has_mlp else ()),
        }
        places = [*((0, 1) if attends or recurs else ()), *((2, 3) if has_mlp else ())]
        named = {place: name for place in places if (name := family.norms[place]) is not None}
        norms = {place: getattr(module, name) for place, name in named.items()}
        _expect(module, names | {name for place, name in named.items() if not _idle(norms[place])})
        own = getattr(module, family.mlp) if has_mlp else None
        experts = [*(getattr(module, name) for name in beside), own] if beside or hasattr(own, "experts") else []
        if experts and (_idle(norms.get(2)) or not _idle(norms.get(3))):
            raise LookupError("norms around experts")
        return _Parts(
            self._attention(module, index) if attends else None,
            self._recurrence(module, index) if recurs else None,
            None if own is None or experts else self._mlp(own),
            experts,
            {place: None if _idle(norm := norms.get(place)) else self._norm(norm) for place in places},
        )

    def _attention(self, layer: Any, index: int) -> _Attention:
        module = getattr(layer, self._family.attention)
        hidden, queries, keys = self._hidden, len(self._queries), len(self._keys)
        projected = {"q_proj": queries * (2 if self._family.gated else 1), "k_proj": keys, "v_proj": keys}
        if hasattr(module, "qkv_proj"):
            projected = {"qkv_proj": queries + 2 * keys}
        back = _named(module, ("o_proj", "out_proj"))
        pairs = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"))
        names = next((names for names in pairs if hasattr(module, names[0])), ())
        _expect(module, {*projected, *names, back})
        joined = [_product(getattr(module, name), outputs, hidden) for name, outputs in projected.items()]
        # What multiplies the input multiplies queries, keys and values.
        taken = _factor(layer, "attention_in_multiplier")
        if taken != 1.0 and (names or any(product.bias is not None for product in joined)):
            raise LookupError("a scale of more than products")
        rotates = self._rotary is not None and self._family.rotates(module)
        return _Attention(
            joined,
            replace(
                _product(getattr(module, back), hidden, queries), scale=taken * _factor(layer, "attn_out_multiplier")
            ),
            self._head_norms(*(getattr(module, name) for name in names)) if names else None,
            self._rotary.of_layer(index) if rotates and self._rotary is not None else None,
            taken * taken * _factor(module, "key_multiplier"),
        )

    def _recurrence(self, layer: Any, index: int) -> _Recurrence:
        mixer = self._mixers[index]
        if not isinstance(mixer, ProjectedMixer) or mixer.module is not getattr(layer, self._family.recurrence or ""):
            raise LookupError(type(layer).__name__)
        first, last = [_of_any_size(part) for part in mixer.first], _of_any_size(mixer.last)
        if {product.weight.shape[1] for product in first} != {self._hidden} or last.weight.shape[0] != self._hidden:
            raise LookupError(type(mixer.module).__name__)
        return _Recurrence(first, replace(last, scale=_factor(layer, "ssm_out_multiplier")), mixer)

    def _mlp(self, module: Any) -> _Mlp:
        widened = next((names for names in _WIDENED if all(hasattr(module, name) for name in names)), ())
        back = _named(module, ("down_proj", "output_linear", "w2"))
        activations = [name for name in ("act_fn", "activation_fn", "activation") if hasattr(module, name)]
        _expect(module, {*widened, back, *activations})
        kind = type(getattr(module, activations[0])).__name__ if activations else _IN_CODE[type(module).__name__]
        activation, down = _ACTIVATIONS[kind], _of_any_size(getattr(module, back))
        products = [_of_any_size(getattr(module, name)) for name in widened]
        outputs = sum(product.weight.shape[0] for product in products)
        parts = 1 if activation in UNGATED else 2
        shapes = {product.weight.shape for product in products}
        if outputs != parts * down.weight.shape[1] or len(shapes) != 1 or down.weight.shape[0] != self._hidden:
            raise LookupError(type(module).__name__)
        scale = _factor(module, "down_multiplier")
        return _Mlp(products, replace(down, scale=scale), activation, _factor(module, "gate_multiplier"))

    def _head_norms(self, query_norm: Any, key_norm: Any) -> HeadNorms:
        query, key = self._norm(query_norm), self._norm(key_norm)
        counts = self._heads
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
        if hasattr(self._module, "mrope_section"):
            # Places in an image and in time, which are alike in a text; some releases want all three.
            numbers = numbers.expand(3, 1, -1)
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
    if not calls:
        # What no layer uses is compiled for heads of any size.
        return HeadCounts(1, 1, 16, 0)
    heads, kv_heads, *dims = _only({call.shape for call in calls}, "heads")
    dim = _only(set(dims), "widths of heads")
    if heads % kv_heads or rotated > dim:
        raise LookupError("heads")
    return HeadCounts(heads // kv_heads, kv_heads, dim, rotated)


def _unrotated(positions: int) -> list[torch.Tensor]:
    return []


def _named(module: torch.nn.Module, names: Sequence[str]) -> str:
    """The first of these names by which a module has a part. Raises LookupError where it has none."""
    for name in names:
        if hasattr(module, name):
            return name
    raise LookupError(type(module).__name__)


def _factor(module: Any, name: str) -> float:
    """A multiplier of a module; 1 where it has none."""
    return float(getattr(module, name, 1.0))


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
    """`_of_any_size` with so many. Raises LookupError."""
    product = _of_any_size(module)
    if product.weight.shape != (outputs, inputs):
        raise LookupError(type(module).__name__)
    return product


def _of_any_size(module: Any) -> Projection:
    """A linear module of transformers, or one that holds the weights of a quantized checkpoint. Raises LookupError."""
    weight = stored_weight(module)
    # What derives from a linear layer may compute something else.
    derived = isinstance(module, torch.nn.Linear) and type(module) is not torch.nn.Linear
    if weight is None or derived:
        raise LookupError(type(module).__name__)
    return Projection(weight, None if module.bias is None else module.bias.detach().float())


def _ordered(product: Projection, order: torch.Tensor) -> Projection:
    """With its outputs in that order."""
    return Projection(product.weight.select(order), None if product.bias is None else product.bias[order])


def _embedding_scale(inner: Any, family: _Family) -> float:
    if hasattr(inner, "embedding_multiplier"):
        return float(inner.embedding_multiplier)
    if not family.scaled_embedding:
        return 1.0
    module = getattr(inner, family.embedding)
    if isinstance(module, StoredEmbedding):
        return module.scale
    # Its module rounds the scale to the type of the weights.
    return float(module.embed_scale.to(module.weight.dtype))

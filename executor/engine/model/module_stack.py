"""A transformers model's own layers, with attention replaced.

Attention is registered through transformers' attention interface, and finds the batch of a forward in a place that the
modules of a model share: keyword arguments do not reach the attention of every family. So the only thing that is
process-wide is a function without state. A forward can also keep the hidden states after some layers, where a draw may
leave early.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.functional import pad

from qpdsl.executor.engine.batch.kernel_batch import KernelBatch
from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.engine.model.adapters import adapt
from qpdsl.executor.engine.model.adapters.attend import LATENT, QUERY_SCALE
from qpdsl.executor.engine.model.adapters.told import Sight, sights
from qpdsl.executor.engine.model.mixers import state_step
from qpdsl.executor.kernels.data.kv_rows import KVShape
from qpdsl.executor.kernels.data.paged_batch import Alibi, Heads, Scoring
from qpdsl.executor.kernels.data.states import FRESH, StateSegment, StateStep
from qpdsl.executor.requests.errors import UnsupportedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from qpdsl.executor.kernels.llvm.layer_attention import LayerAttention
    from qpdsl.executor.kernels.llvm.sample import RowSampler

ATTENTION = "qpdsl_paged"
# The attribute of every module that has the model's `_Place`.
_PLACE = "qpdsl_place"
_INNER = ("model", "transformer")


class AttentionBatch(Protocol):
    """A batch as the layers use it: `tokens`, `positions` int64 [T], and attention over its sequences' pages.

    Queries, keys and values come in the type of the cache.
    """

    @property
    def tokens(self) -> torch.Tensor: ...

    @property
    def positions(self) -> torch.Tensor: ...

    @property
    def segments(self) -> tuple[StateSegment, ...]:
        """Where layers keep states, from where to where, in the order of their rows."""
        ...

    def attend(self, cache: KVCache, heads: Heads, layer: int, scoring: Scoring) -> torch.Tensor:
        """Stores keys and values, then attends: [T, H, V]."""
        ...


@dataclass(frozen=True, slots=True)
class ExitLayers:
    """The layers of a model, after each of which but the last it may be left, and the norm before the model's head."""

    layers: torch.nn.ModuleList
    norm: torch.nn.Module

    @classmethod
    def of(cls, inner: torch.nn.Module) -> ExitLayers | None:
        """None where the model's parts do not have the names that the known families give them."""
        stack = getattr(inner, "layers", None)
        norm = getattr(inner, "norm", None) or getattr(inner, "final_layer_norm", None)
        return None if not isinstance(stack, torch.nn.ModuleList) or norm is None else cls(stack, norm)

    @contextmanager
    def outputs(self, exits: Sequence[int]) -> Iterator[dict[int, torch.Tensor]]:
        """What receives the output [B, T, d] after so many layers, each of `exits`, in a forward inside the block."""
        outputs: dict[int, torch.Tensor] = {}

        def keep(
            depth: int, module: torch.nn.Module, inputs: object, output: torch.Tensor | tuple[torch.Tensor, ...]
        ) -> None:
            outputs[depth] = output[0] if isinstance(output, tuple) else output

        with ExitStack() as hooks:
            for depth in exits:
                hooks.callback(self.layers[depth - 1].register_forward_hook(partial(keep, depth)).remove)
            yield outputs


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of attention, as it is recorded at load.

    shape:  query heads, KV heads, and the widths of a query, a key and a value
    masked: whether the model gives a mask of its own
    others: names of the arguments that paged attention does not know
    chunk:  see `Scoring`
    alibi:  whether scores get a penalty for distance
    latent: whether values are a part of keys (`KVShape`)
    owner:  the first layer whose attention got the same keys and values
    """

    layer: int
    shape: tuple[int, int, int, int, int]
    masked: bool
    scaling: float
    window: int | None
    softcap: float | None
    sinks: bool
    causal: bool
    others: tuple[str, ...]
    chunk: int | None = None
    alibi: bool = False
    latent: bool = False
    owner: int = -1

    @property
    def kept(self) -> KVShape:
        """What its layer must keep of a token."""
        return KVShape(self.shape[1], self.shape[3], self.shape[4], self.latent)


@dataclass(frozen=True, slots=True)
class _Unattended:
    """Rows whose attention is left out: each gets numbers of its own queries back."""

    tokens: torch.Tensor
    positions: torch.Tensor
    segments: tuple[StateSegment, ...] = ()

    def attend(self, cache: KVCache | None, heads: Heads, layer: int, scoring: Scoring) -> torch.Tensor:
        width = heads.value.shape[-1]
        return pad(heads.query, (0, max(0, width - heads.query.shape[-1])))[..., :width].contiguous()


@dataclass(slots=True)
class _Call:
    """What one forward gives to each attention layer.

    sights:   by layer, see `told.py`
    compiled: by layer
    record:   at load, gets each call
    given:    by call, the keys and values of it, with their layer
    """

    cache: KVCache | None
    batch: AttentionBatch
    sights: list[Sight]
    compiled: dict[int, LayerAttention] | None = None
    record: list[AttentionCall] | None = None
    given: list[tuple[int, torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def attend(self, heads: Heads, layer: int, scoring: Scoring) -> torch.Tensor:
        """See `AttentionBatch.attend`."""
        if self.cache is None or self.compiled is None or not isinstance(self.batch, KernelBatch):
            return self.batch.attend(self.cache, heads, layer, scoring)  # type: ignore[arg-type]
        rows, number = self.cache.of_layer[layer]
        return self.compiled[layer].attend(heads, rows, self.batch.paged, number, scoring)

    def owner(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> int:
        """The first layer with the same keys and values, which then keeps them for others."""
        for number, its_key, its_value in self.given:
            if (its_key.data_ptr(), its_value.data_ptr()) == (key.data_ptr(), value.data_ptr()):
                return number
        self.given.append((layer, key, value))
        return layer


class _Place:
    """Where the modules of a model find the forward that runs; None between forwards."""

    call: _Call | None = None


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    alibi: Alibi | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function: query [1, H, T, D], key [1, KV, T, D], value [1, KV, T, V], positions already rotated in.

    `s_aux` [H]: the layer's attention sinks.
    """
    place = getattr(module, _PLACE, None)
    running: _Call | None = None if place is None else place.call
    if running is None:
        raise UnsupportedModel("its attention does not run in a forward of its modules")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int) or layer < 0:
        raise UnsupportedModel("its attention does not know the number of its layer")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window, chunk = running.sights[layer]
    window = sliding_window or window
    latent = getattr(module, LATENT, None)
    if latent is not None:
        query = latent.narrowed(query)
    query_scale = getattr(module, QUERY_SCALE, None)
    if query_scale is not None:
        query = (query * query_scale(running.batch.positions)[:, None]).to(query.dtype)
    if running.record is not None:
        given = tuple(sorted(name for name, argument in others.items() if argument is not None))
        running.record.append(
            AttentionCall(
                layer,
                (query.shape[1], key.shape[1], query.shape[-1], key.shape[-1], value.shape[-1]),
                attention_mask is not None,
                scale,
                window,
                softcap,
                s_aux is not None,
                _is_causal(module, others.get("is_causal")),
                given,
                chunk,
                alibi is not None,
                latent is not None,
                running.owner(layer, key, value),
            )
        )
        if running.cache is not None and running.record[-1].kept != running.cache.layout.shape(layer):
            raise UnsupportedModel("its layers attend to keys and values of other shapes in another forward")
    kept = query.dtype if running.cache is None else running.cache.layout.dtype
    heads = Heads(*(part[0].transpose(0, 1).to(kept) for part in (query, key, value)))
    attended = running.attend(heads, layer, Scoring(scale, window, softcap, s_aux, chunk, alibi)).to(query.dtype)
    return (attended if latent is None else latent.widened(attended))[None], None


def _is_causal(module: torch.nn.Module, argument: bool | None) -> bool:
    """As transformers' own attention functions see it."""
    return bool(getattr(module, "is_causal", True) if argument is None else argument)


def inner_model(model: PreTrainedModel) -> torch.nn.Module:
    """The model without its head. Raises UnsupportedModel."""
    # Some classes do not say how they name it.
    named: Iterator[torch.nn.Module] = (getattr(model, name, model) for name in (model.base_model_prefix, *_INNER))
    inner = next((module for module in named if module is not model), model)
    if inner is model:
        raise UnsupportedModel("it has no inner model apart from its head")
    return inner


class ModuleStack:
    """A model without its head, run by transformers' modules. `is_base`: it never had a head.

    Raises UnsupportedModel where its attention cannot be replaced. On a CPU `rowwise.py` may give it `attention`
    and a `sampler` that are compiled. `rowwise`: whether a row's bits depend on that row alone.
    """

    def __init__(self, model: PreTrainedModel, layers: int, *, is_base: bool = False) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(ATTENTION, _attend)
        try:
            model.set_attn_implementation(ATTENTION)
        except ValueError as error:
            raise UnsupportedModel(f"its attention cannot be replaced: {error}") from error
        try:
            adapt(model, _attend)
        except LookupError as error:
            raise UnsupportedModel(f"its attention cannot be replaced: {error}") from error
        self._place = _Place()
        for module in model.modules():
            setattr(module, _PLACE, self._place)
        self._sights = sights(model.config.get_text_config(), layers)
        self.inner: torch.nn.Module = model if is_base else inner_model(model)
        self.attention: dict[int, LayerAttention] | None = None
        self.sampler: RowSampler | None = None
        self.rowwise = False
        exits = ExitLayers.of(self.inner)
        self._exits = exits if exits is not None and len(exits.layers) == layers else None

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The embeddings [T, d] of `tokens` int64 [T]."""
        module = self.inner.get_input_embeddings()  # type: ignore[operator]
        embedded: torch.Tensor = module(tokens)
        return embedded

    @property
    def depth(self) -> int:
        """The number of layers; 0 where the model cannot be left after one of them."""
        return 0 if self._exits is None else len(self._exits.layers)

    def calls(self, tokens: torch.Tensor) -> list[AttentionCall]:
        """Each call of attention in a forward of `tokens` int64 [T] in which nothing attends."""
        record: list[AttentionCall] = []
        self._run(_alone(tokens), _Call(None, _alone(tokens), self._sights, record=record))
        return record

    def probe(self, batch: AttentionBatch, cache: KVCache) -> tuple[torch.Tensor, list[AttentionCall]]:
        """The hidden states [T, d] of a forward, and each call of attention."""
        record: list[AttentionCall] = []
        return self._run(batch, _Call(cache, batch, self._sights, record=record)), record

    def without_attention(self, tokens: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """The hidden states [T, d] of a forward of `tokens` int64 [T] in which nothing attends."""
        batch = _alone(tokens)
        if cache.states is not None:
            batch = replace(batch, segments=(StateSegment(FRESH, cache.states.blocks - 1, 0, len(tokens)),))
        return self._run(batch, _Call(cache, batch, self._sights))

    def forward(
        self, batch: AttentionBatch, cache: KVCache, exits: Sequence[int] = ()
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Hidden states [T, d] after the last norm; and of each of `exits`, those after so many layers, before it."""
        call = _Call(cache, batch, self._sights, self.attention)
        if not exits or self._exits is None:
            return self._run(batch, call), {}
        with self._exits.outputs(exits) as outputs:
            hidden = self._run(batch, call)
        return hidden, {depth: output[0] for depth, output in outputs.items()}

    def normed(self, residual: torch.Tensor) -> torch.Tensor:
        """The last norm of hidden states [N, d] after some layer."""
        assert self._exits is not None
        normed: torch.Tensor = self._exits.norm(residual)
        return normed

    def _run(self, batch: AttentionBatch, call: _Call) -> torch.Tensor:
        self._place.call = call
        states = None if call.cache is None else call.cache.states
        try:
            with state_step(None if states is None else StateStep(states, batch.segments)):
                hidden: torch.Tensor = self.inner(
                    input_ids=batch.tokens[None], position_ids=batch.positions[None], use_cache=False
                )[0]
                return hidden[0]
        finally:
            self._place.call = None


def _alone(tokens: torch.Tensor) -> _Unattended:
    return _Unattended(tokens, torch.arange(len(tokens), device=tokens.device))

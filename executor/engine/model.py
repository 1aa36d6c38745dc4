"""A transformers causal model behind paged attention.

The model's own layers run unchanged; only attention is ours, registered through transformers' attention interface and
handed the batch as a keyword argument of the forward, so nothing is process-wide but a stateless function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

from qpdsl.executor.engine.batch import MIN_ROWS, Batch
from qpdsl.executor.engine.kv import KVCache
from qpdsl.executor.engine.middle import MiddleLayer
from qpdsl.executor.kernels.attention import Group, paged_attention, write_kv

ATTENTION = "qpdsl_paged"
_PROBE_TOKENS = 64


class UnsupportedModel(Exception):
    """A model that cannot run on the paged engine; the message says why."""


@dataclass(slots=True)
class _Call:
    """What one forward hands to each attention layer. `probe` records the calls of the check at load time."""

    cache: KVCache
    slots: torch.Tensor
    groups: list[Group]
    probe: list[dict[str, Any]] | None = None


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    qpdsl: _Call | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function: query [1, H, T, D], key and value [1, KV, T, D], positions already rotated in."""
    if qpdsl is None:
        raise UnsupportedModel("its layers do not hand a forward's keyword arguments on to attention")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    if qpdsl.probe is not None:
        qpdsl.probe.append({"layer": layer, "mask": attention_mask, "window": sliding_window, **others})
    keys, values = qpdsl.cache.keys[layer], qpdsl.cache.values[layer]
    write_kv(keys, key[0].transpose(0, 1), qpdsl.slots)
    write_kv(values, value[0].transpose(0, 1), qpdsl.slots)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = paged_attention(query[0].transpose(0, 1), keys, values, qpdsl.groups, scale, sliding_window, softcap)
    return out[None], None


AttentionInterface.register(ATTENTION, _attend)


class LogitHead:
    """Hidden states to logits, with what some architectures do after the projection (soft-cap, scale)."""

    def __init__(self, model: PreTrainedModel) -> None:
        projection = model.get_output_embeddings()
        if not isinstance(projection, torch.nn.Linear):
            raise UnsupportedModel("it has no linear output head, so it is no causal language model")
        self.projection = projection
        self.width = projection.out_features
        config = model.config.get_text_config()
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self.scale: float = getattr(config, "logit_scale", None) or 1.0
        self.scale /= getattr(config, "logits_scaling", None) or 1.0

    def dense(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float32 [N, V] of hidden states [N, d]."""
        return self._finish(self.projection(hidden))

    def gather(self, hidden: torch.Tensor, ids: tuple[int, ...]) -> torch.Tensor:
        """Logits float32 [N, K] of the K given ids only.

        A sum of products a pair rather than a matrix product, so that a score's bits do not depend on N.
        """
        rows = torch.tensor(ids, device=hidden.device)
        logits = (hidden[:, None, :].float() * self.projection.weight[rows].float()).sum(dim=-1)
        if self.projection.bias is not None:
            logits = logits + self.projection.bias[rows].float()
        return self._finish(logits)

    def _finish(self, logits: torch.Tensor) -> torch.Tensor:
        logits = logits.float() * self.scale
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


class PagedModel:
    """A loaded model with its KV cache. Raises UnsupportedModel where paged attention cannot reproduce it."""

    def __init__(self, model: PreTrainedModel, kv_bytes: int, page_size: int = 16) -> None:
        config = model.config.get_text_config()
        self.device = str(model.device)
        self.dtype: torch.dtype = model.dtype
        self.page_size = page_size
        self.parameters: int = model.num_parameters()
        self.vocabulary: int = model.get_input_embeddings().num_embeddings
        self.max_positions: int = getattr(config, "max_position_embeddings", None) or 1 << 30
        layers, heads, kv_heads, dim = _attention_shape(config)
        self.fold = heads // kv_heads
        self.page_bytes = KVCache.page_bytes(layers, page_size, kv_heads, dim, self.dtype)
        # Page 0 is scratch and beyond the budget.
        self.pages = max(1, kv_bytes // self.page_bytes) + 1
        self.head = LogitHead(model)
        _refuse_batch_dependent(config)
        tokens = _probe_tokens(model, self.max_positions)
        expected = _expected(model, tokens)
        self._inner = _switch_attention(model)
        self._middle = MiddleLayer.of(self._inner, layers)
        calls = _probe(self._inner, self.head, tokens, expected, (layers, kv_heads, dim), page_size)
        _check_windows(config, calls)
        self.cache = KVCache(layers, self.pages, page_size, kv_heads, dim, self.dtype, self.device)

    @property
    def has_middle(self) -> bool:
        """True where `forward` can return the hidden states after the middle layer."""
        return self._middle is not None

    @torch.inference_mode()
    def forward(self, batch: Batch, *, middle: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Runs one batch and returns the hidden states [W, d] of its wanted rows; their KV is in the cache after it.

        With `middle`, also those after the middle layer, with the last norm over them.
        """
        call = _Call(self.cache, batch.slots, batch.groups)
        if not middle or self._middle is None:
            hidden = _run(self._inner, batch.tokens, batch.positions, call)
            return hidden[0].index_select(0, batch.wanted), None
        with self._middle.kept() as kept:
            hidden = _run(self._inner, batch.tokens, batch.positions, call)
        return hidden[0].index_select(0, batch.wanted), self._middle.norm(kept[0][0].index_select(0, batch.wanted))

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float32 [N, V] of hidden states [N, d]: one row's bits do not depend on N."""
        count = hidden.shape[0]
        if count < MIN_ROWS:
            hidden = torch.nn.functional.pad(hidden, (0, 0, 0, MIN_ROWS - count))
        return self.head.dense(hidden)[:count]


def _attention_shape(config: PretrainedConfig) -> tuple[int, int, int, int]:
    """Layers, query heads, KV heads, head width. Raises UnsupportedModel where layers differ or have no attention."""
    try:
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return config.num_hidden_layers, heads, kv_heads, dim
    except AttributeError as error:
        raise UnsupportedModel(f"its configuration names no attention shape common to all layers: {error}") from error


def _run(inner: torch.nn.Module, tokens: torch.Tensor, positions: torch.Tensor, call: _Call) -> torch.Tensor:
    hidden: torch.Tensor = inner(input_ids=tokens, position_ids=positions, use_cache=False, qpdsl=call)[0]
    return hidden


def _switch_attention(model: PreTrainedModel) -> torch.nn.Module:
    try:
        model.set_attn_implementation(ATTENTION)
    except ValueError as error:
        raise UnsupportedModel(f"its attention cannot be replaced: {error}") from error
    inner = model.base_model
    if inner is model:
        raise UnsupportedModel("it has no inner model apart from its head")
    return inner  # type: ignore[no-any-return]


def _refuse_batch_dependent(config: PretrainedConfig) -> None:
    """Refuses position encodings that look at the longest sequence of a forward: rows would depend on each other."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    if any(kind.get("rope_type", kind.get("type")) == "longrope" for kind in kinds):
        raise UnsupportedModel("its longrope position encoding changes with the longest sequence in the batch")


def _probe_tokens(model: PreTrainedModel, max_positions: int) -> torch.Tensor:
    rows = torch.arange(min(_PROBE_TOKENS, max_positions), device=model.device)
    tokens: torch.Tensor = (rows * 7 + 3) % model.config.get_text_config().vocab_size
    return tokens


@torch.inference_mode()
def _expected(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """The model's own logits float32 [T, V], by its own attention."""
    try:
        logits: torch.Tensor = model(input_ids=tokens[None], use_cache=False).logits[0].float()
    except Exception as error:  # whatever a model's own forward may raise
        raise UnsupportedModel(f"a trial run failed: {type(error).__name__}: {error}") from error
    return logits


@torch.inference_mode()
def _probe(
    inner: torch.nn.Module,
    head: LogitHead,
    tokens: torch.Tensor,
    expected: torch.Tensor,
    shape: tuple[int, int, int],
    page_size: int,
) -> list[dict[str, Any]]:
    """Runs the tokens through paged attention; refuses the model unless every layer came by and the logits are its own.

    `shape`: layers, KV heads, head width. Returns what each call of attention was given.
    """
    layers, kv_heads, dim = shape
    count, device = len(tokens), tokens.device
    pages = -(-count // page_size)
    cache = KVCache(layers, pages + 1, page_size, kv_heads, dim, head.projection.weight.dtype, str(device))
    rows = torch.arange(count, device=device)
    group = Group(1, count, rows, None, rows[None], torch.arange(1, pages + 1, device=device))
    calls: list[dict[str, Any]] = []
    try:
        hidden = _run(inner, tokens[None], rows[None], _Call(cache, rows + page_size, [group], calls))
    except UnsupportedModel:
        raise
    except Exception as error:  # whatever a model's own forward may raise
        raise UnsupportedModel(f"a trial run failed: {type(error).__name__}: {error}") from error
    if sorted(call["layer"] for call in calls) != [*range(layers)]:
        reached = len({call["layer"] for call in calls})
        raise UnsupportedModel(f"paged attention reaches {reached} of its {layers} layers")
    for call in calls:
        if call["mask"] is not None:
            raise UnsupportedModel("it builds an attention mask of its own")
        if call.get("s_aux") is not None:
            raise UnsupportedModel("it uses attention sinks, which paged attention does not compute")
        if call.get("is_causal") is False:
            raise UnsupportedModel("its attention is not causal")
    tolerance = 1e-3 if head.projection.weight.dtype == torch.float32 else 0.1
    worst = (head.dense(hidden[0]) - expected).abs().max().item()
    if not worst <= tolerance * max(1.0, expected.abs().max().item()):
        raise UnsupportedModel(f"it computes more than paged attention and a projection: logits differ by {worst:.3g}")
    return calls


def _check_windows(config: PretrainedConfig, calls: list[dict[str, Any]]) -> None:
    """Refuses a model whose layers slide a window and do not tell attention; the probe is too short to see it."""
    window = getattr(config, "sliding_window", None)
    if window is None or not getattr(config, "use_sliding_window", True):
        return
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * len(calls)
    for call in calls:
        if kinds[call["layer"]] == "sliding_attention" and call["window"] is None:
            raise UnsupportedModel(f"its layers do not tell attention of their window of {window} tokens")

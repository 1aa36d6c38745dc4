"""The middle layer of a model, where `via amortized` may leave it.

MERGED: A transformers model's own layers, with attention replaced.

Attention is registered through transformers' attention interface and handed the batch as a keyword argument of the
forward, so nothing is process-wide but a stateless function.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import AttentionInterface, PreTrainedModel

from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.kernels.data.paged_batch import Scoring
from qpdsl.executor.requests.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class MiddleLayer:
    """The layer in the middle of a model, with `depth` layers up to it, and the norm that stands before its head."""

    depth: int
    layer: torch.nn.Module
    norm: torch.nn.Module

    @classmethod
    def of(cls, inner: torch.nn.Module, layers: int) -> MiddleLayer | None:
        """None where the model names its parts as no family known here does."""
        stack = getattr(inner, "layers", None)
        norm = getattr(inner, "norm", None) or getattr(inner, "final_layer_norm", None)
        if not isinstance(stack, torch.nn.ModuleList) or len(stack) != layers or layers < 2 or norm is None:
            return None
        return cls(layers // 2, stack[layers // 2 - 1], norm)

    @contextmanager
    def kept(self) -> Iterator[list[torch.Tensor]]:
        """A list that receives what the layer puts out [1, T, d] in a forward inside the block."""
        kept: list[torch.Tensor] = []

        def keep(module: torch.nn.Module, given: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
            kept.append(output[0] if isinstance(output, tuple) else output)

        handle = self.layer.register_forward_hook(keep)
        try:
            yield kept
        finally:
            handle.remove()


ATTENTION = "qpdsl_paged"

_log = logging.getLogger(__name__)


class Attending(Protocol):
    """A batch as the layers see it: `tokens`, `positions` int64 [T], and attention over its sequences' pages."""

    @property
    def tokens(self) -> torch.Tensor: ...

    @property
    def positions(self) -> torch.Tensor: ...

    def attend(
        self,
        cache: KVCache,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: int,
        scoring: Scoring,
    ) -> torch.Tensor:
        """Stores `key` and `value` [T, KV, D], then attends: `query` [T, H, D] to [T, H, D]."""
        ...


@dataclass(slots=True)
class _Call:
    """What one forward hands to each attention layer. `seen` records what the calls were given, at load time."""

    cache: KVCache
    batch: Attending
    seen: list[dict[str, Any]] | None = None


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
    qpdsl: _Call | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function: query [1, H, T, D], key and value [1, KV, T, D], positions already rotated in.

    `s_aux` [H]: the layer's attention sinks.
    """
    if qpdsl is None:
        raise UnsupportedModel("its layers do not hand a forward's keyword arguments on to attention")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if qpdsl.seen is not None:
        known = {"layer": layer, "mask": attention_mask, "scaling": scale, "window": sliding_window, "softcap": softcap}
        qpdsl.seen.append({**others, **known, "sinks": s_aux})
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    scoring = Scoring(scale, sliding_window, softcap, s_aux)
    return qpdsl.batch.attend(qpdsl.cache, query, key, value, layer, scoring)[None], None


AttentionInterface.register(ATTENTION, _attend)


class ModuleStack:
    """Everything of a model but its head, as transformers wrote it. Raises UnsupportedModel where that cannot be.

    With `is_base` the model has no head to begin with.
    """

    def __init__(self, model: PreTrainedModel, layers: int, *, is_base: bool = False) -> None:
        try:
            model.set_attn_implementation(ATTENTION)
        except ValueError as error:
            raise UnsupportedModel(f"its attention cannot be replaced: {error}") from error
        inner = model.base_model
        if inner is model and not is_base:
            raise UnsupportedModel("it has no inner model apart from its head")
        self.inner: torch.nn.Module = inner
        self._middle = MiddleLayer.of(inner, layers)
        self._compiled: Callable[..., Any] | None = None

    @property
    def middle(self) -> int:
        """The number of layers in the first half, after which `via amortized` may leave; 0 where it cannot."""
        return 0 if self._middle is None else self._middle.depth

    def compile(self, backend: str = "inductor") -> None:
        """Compiles the layers, when they first run. Without a compiler, or where it fails, they run as they are."""
        if self._compiled is None and (backend != "inductor" or _has_compiler()):
            self._compiled = torch.compile(self.inner, fullgraph=True, dynamic=True, backend=backend)

    @property
    def compiled(self) -> bool:
        return self._compiled is not None

    def probe(self, batch: Attending, cache: KVCache) -> tuple[torch.Tensor, list[dict[str, Any]]]:
        """The hidden states [T, d] of a forward, and what each call of attention was given."""
        seen: list[dict[str, Any]] = []
        return self._run(batch, _Call(cache, batch, seen)), seen

    def forward(self, batch: Attending, cache: KVCache, middle: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states [T, d] after the last norm; with `middle`, also those of the middle layer after that norm."""
        call = _Call(cache, batch)
        if not middle or self._middle is None:
            return self._run(batch, call, compiled=True), None
        with self._middle.kept() as kept:
            hidden = self._run(batch, call)
        return hidden, self._middle.norm(kept[0][0])

    def _run(self, batch: Attending, call: _Call, compiled: bool = False) -> torch.Tensor:
        given = {"input_ids": batch.tokens[None], "position_ids": batch.positions[None]}
        if compiled and self._compiled is not None:
            try:
                return self._hidden(self._compiled, given, call)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a compiler may raise
                if batch.tokens.is_cuda and torch.cuda.is_current_stream_capturing():
                    # What a graph does not take says nothing against the compiled layers.
                    raise
                # What of the step was stored is stored again.
                self._compiled = None
                _log.warning("the layers run uncompiled: %s: %s", type(error).__name__, error)
        return self._hidden(self.inner, given, call)

    @staticmethod
    def _hidden(inner: Callable[..., Any], given: dict[str, torch.Tensor], call: _Call) -> torch.Tensor:
        hidden: torch.Tensor = inner(**given, use_cache=False, qpdsl=call)[0]
        return hidden[0]


def _has_compiler() -> bool:
    """True where the C compiler is found that generated code needs."""
    found = any(shutil.which(name) for name in (os.environ.get("CC", "cc"), "gcc", "clang"))
    if not found:
        _log.warning("the layers run uncompiled: no C compiler was found")
    return found

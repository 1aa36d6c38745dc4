"""One pass of a model over a text: the hidden states after some of its layers, and what it says of each next token."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.engine.model.heads import LogitHead, stored_weight
from qpdsl.executor.engine.model.module_stack import inner_model
from qpdsl.executor.requests.errors import UnsupportedModel

# Tokens of a window, and windows of a forward.
_WINDOW, _BATCH = 256, 4
# With fewer windows no part of them would say anything.
_FEWEST_WINDOWS = 10
_LEAST_WINDOW = 16
# The likeliest ids of a token that are kept, and rows whose logits of all ids are computed at once.
KEPT = 32
ROWS = 64
# Two ways to sum the same float32 products differ by about this much of the largest number.
_SAME = 1e-3


@dataclass(frozen=True, slots=True)
class States:
    """What a model computed at N places of a text.

    after:   by layer, the residual float32 [N, d] after so many layers
    last:    the residual float32 [N, d] after the last layer
    read:    what the model's head reads, float32 [N, d]
    ids:     int64 [N, KEPT], the likeliest next ids
    logprobs: float32 [N, KEPT], their log-probabilities
    """

    after: dict[int, torch.Tensor]
    last: torch.Tensor
    read: torch.Tensor
    ids: torch.Tensor
    logprobs: torch.Tensor

    def __len__(self) -> int:
        return len(self.last)


class FrozenHead:
    """The last norm and the head of a model, computed in float32 with weights that stay as they are."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Raises UnsupportedModel where the model has no such parts."""
        head = LogitHead(model)
        projection = model.get_output_embeddings()
        weight = stored_weight(projection)
        inner = inner_model(model)
        norm = getattr(inner, "norm", None) or getattr(inner, "final_layer_norm", None)
        stack = getattr(inner, "layers", None)
        if weight is None:
            raise UnsupportedModel("a package keeps the weights of its head in a form of its own")
        if norm is None or not isinstance(stack, torch.nn.ModuleList) or len(stack) < 2:
            raise UnsupportedModel("its layers and its last norm do not have the names that known families give them")
        self.norm: torch.nn.Module = norm
        self.layers: torch.nn.ModuleList = stack
        self.width, self.vocabulary = head.in_features, head.width
        self.inner = inner
        self._head, self._weight = head, weight
        self._bias = None if projection.bias is None else projection.bias.detach().float()

    def normed(self, residual: torch.Tensor) -> torch.Tensor:
        """The last norm over residuals float32 [N, d]."""
        normed: torch.Tensor = self.norm(residual)
        return normed.float()

    def rows(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The head's weights float32 [K, d] and biases float32 [K] of `ids` int64 [K]."""
        return self._weight.select(ids).dequantized(), None if self._bias is None else self._bias[ids]

    def logits_by(self, normed: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor | None]) -> torch.Tensor:
        """Logits float32 [N, K] of what the norm gave [N, d], by rows of the head."""
        weight, bias = rows
        logits = normed @ weight.T
        logits = (logits if bias is None else logits + bias) * self._head.scale
        cap = self._head.softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    @torch.no_grad()
    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """Logits float32 [N, V] of all ids."""
        own = next((parameter.dtype for parameter in self.norm.parameters()), torch.float32)
        return self._head.dense(normed.to(own))


def windows_of(
    tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], tokens: int, longest: int, seed: int
) -> list[list[int]]:
    """Pieces of the texts, all of one length and in random order, `tokens` in sum or less where the texts are short.

    Each begins as the tokenizer begins a text. Raises ValueError where the texts are too short.
    """
    alone: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole: list[int] = tokenizer("a")["input_ids"]
    begin = whole[: whole.index(alone[0])] if alone and alone[0] in whole else []
    encoded: list[list[int]] = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    order = random.Random(f"calibrate {seed}")
    if len(encoded) > 1:
        order.shuffle(encoded)
    ids = [id for part in encoded for id in part]
    most = min(_WINDOW, longest) - len(begin)
    length = min(most, len(ids) // _FEWEST_WINDOWS)
    if length < _LEAST_WINDOW:
        least = _FEWEST_WINDOWS * _LEAST_WINDOW
        raise ValueError(f"the text has {len(ids):,} tokens, and {least:,} are the least; 20,000 make good heads")
    pieces = [ids[start : start + length] for start in range(0, len(ids) - length + 1, length)]
    order.shuffle(pieces)
    count = max(_FEWEST_WINDOWS, tokens // (length + len(begin)))
    return [begin + piece for piece in pieces[:count]]


class StateReader:
    """Runs a model over windows of text. Raises ModelError where it has no parts that an exit could read."""

    def __init__(self, name: str, model: PreTrainedModel) -> None:
        try:
            self.head = FrozenHead(model)
        except UnsupportedModel as error:
            raise ModelError(name, f"no exit head can be fitted: {error}") from error
        self._name = name
        self._device = model.device
        model.requires_grad_(False)

    @torch.no_grad()
    def read(self, windows: Sequence[Sequence[int]], layers: Sequence[int], tell: Callable[[float], None]) -> States:
        """The states at every place of the windows but the first of each; `tell` is given the share that is done."""
        parts: list[States] = []
        for start in range(0, len(windows), _BATCH):
            batch = torch.tensor(windows[start : start + _BATCH], device=self._device)
            parts.append(self._forward(batch, layers))
            if start == 0:
                self._check(parts[0])
            tell(min(1.0, (start + _BATCH) / len(windows)))
        return States(
            {layer: torch.cat([part.after[layer] for part in parts]) for layer in layers},
            *(torch.cat([getattr(part, name) for part in parts]) for name in ("last", "read", "ids", "logprobs")),
        )

    def _forward(self, batch: torch.Tensor, layers: Sequence[int]) -> States:
        kept: dict[int, torch.Tensor] = {}
        with _outputs(self.head.layers, (*layers, len(self.head.layers)), kept):
            output = self.head.inner(input_ids=batch, use_cache=False)[0]
        states = {layer: _rows(hidden) for layer, hidden in kept.items()}
        last = states.pop(len(self.head.layers))
        read = _rows(output)
        ids, logprobs = [], []
        for piece in torch.split(read, ROWS):
            logits = self.head.logits(piece)
            best = logits.topk(min(KEPT, logits.shape[1]), dim=1)
            ids.append(best.indices)
            logprobs.append(best.values - logits.logsumexp(dim=1, keepdim=True))
        return States(states, last, read, torch.cat(ids), torch.cat(logprobs))

    def _check(self, states: States) -> None:
        normed = self.head.normed(states.last)
        # In a narrower type the model itself rounds on the way.
        exact = next(self.head.norm.parameters()).dtype == torch.float32
        bound = (_SAME if exact else 0.1) * float(states.read.abs().max())
        if not float((normed - states.read).abs().max()) <= bound:
            reason = "its head reads more than the last norm of its last layer's output"
            raise ModelError(self._name, f"no exit head can be fitted: {reason}")


def _rows(hidden: torch.Tensor) -> torch.Tensor:
    """[B, T, d] to float32 [B · (T − 1), d]: the first token of a window has read nothing."""
    return hidden[:, 1:].flatten(0, 1).float()


@contextmanager
def _outputs(stack: torch.nn.ModuleList, layers: Sequence[int], kept: dict[int, torch.Tensor]) -> Iterator[None]:
    """Puts what comes after each of these numbers of layers into `kept`, in forwards inside the block."""

    def keep(layer: int) -> Callable[..., None]:
        def hook(module: torch.nn.Module, inputs: object, output: Any) -> None:
            kept[layer] = output[0] if isinstance(output, tuple) else output

        return hook

    handles = [stack[layer - 1].register_forward_hook(keep(layer)) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

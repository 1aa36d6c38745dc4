"""One pass of a model over a text: the hidden states after some of its layers, and what it says of each next token."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.engine.model.heads import LogitHead, stored_weight
from qpdsl.executor.engine.model.module_stack import ExitLayers, inner_model
from qpdsl.executor.requests.errors import UnsupportedModel

# Tokens of a window, and windows of a forward.
_WINDOW, _BATCH = 256, 4
# With fewer windows no part of them would say anything.
_FEWEST_WINDOWS = 10
_MIN_WINDOW = 16
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
        exits = ExitLayers.of(inner)
        if weight is None:
            raise UnsupportedModel("a package keeps the weights of its head in a form of its own")
        if exits is None or len(exits.layers) < 2:
            raise UnsupportedModel("its layers and its last norm do not have the names that known families give them")
        self.exits, self.norm, self.layers = exits, exits.norm, exits.layers
        self.width, self.vocabulary = head.in_features, head.width
        self.inner = inner
        self._head, self._weight = head, weight
        self._bias = None if projection.bias is None else projection.bias.detach().float()

    def costs(self, layer: int) -> tuple[float, float, float]:
        """What a draw reads that leaves after a layer, what it reads besides where it goes on, and the model's head.

        All in shares of the weights that a full step reads.
        """
        matrices = sum(_weights(part) for part in self.layers)
        first = sum(_weights(part) for part in self.layers[:layer])
        output = self.width * self.vocabulary
        full = matrices + output
        return (first + output + self.width**2) / full, (matrices - first + output) / full, output / full

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


def _weights(layer: torch.nn.Module) -> int:
    """The numbers in a layer's matrices, as many as the multiply-adds of a token."""
    stored = (getattr(module, "stored", None) for module in layer.modules())
    held = sum(weight.shape[0] * weight.shape[1] for weight in stored if weight is not None)
    return int(held + sum(parameter.numel() for parameter in layer.parameters() if parameter.ndim > 1))


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
    if length < _MIN_WINDOW:
        least = _FEWEST_WINDOWS * _MIN_WINDOW
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
        with self.head.exits.outputs((*layers, len(self.head.layers))) as kept:
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

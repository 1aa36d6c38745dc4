"""What all trainings share: the model's shape, a fast attention, optimizers, the loop, resumable checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from qpdsl.family.training.progress import Progress
from qpdsl.family.training.tokenizer import VOCABULARY

ATTENTION = "zoo_training_sdpa"
HEAD = 32
_WARMUP_STEPS = 100
_DECAY_SHARE = 0.5
_CHECKPOINT_SECONDS = 60.0


def _training_sdpa(
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, scaling: float, **_: Any
) -> tuple[torch.Tensor, None]:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    kind = q.dtype
    if q.device.type == "cpu":
        # On a CPU the backward pass of bfloat16 attention is eight times slower than the float32 one.
        q, k, v = q.float(), k.float(), v.float()
    with torch.autocast(q.device.type, enabled=False):
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling)
    return out.to(kind).transpose(1, 2), None


AttentionInterface.register(ATTENTION, _training_sdpa)


@dataclass(frozen=True)
class Shape:
    """A Llama with heads of 32, two KV heads and tied embeddings; `inner` is the width inside the MLP."""

    layers: int
    width: int
    inner: int


def new_model(shape: Shape, seed: int) -> LlamaForCausalLM:
    """A fresh float32 model."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.width // HEAD,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=4,
    )
    model = LlamaForCausalLM(config)
    model.set_attn_implementation(ATTENTION)
    return model


def hidden_after(model: LlamaForCausalLM, ids: torch.Tensor, *layers: int) -> list[torch.Tensor]:
    """The normed hidden states [rows, width, hidden] after each of `layers` (counted from 1, rising)."""
    inner = model.model
    stream = inner.embed_tokens(ids)
    rotation = inner.rotary_emb(stream, torch.arange(ids.shape[1], device=ids.device)[None])
    found = []
    for number, layer in enumerate(inner.layers[: max(layers)], start=1):
        stream = layer(stream, attention_mask=None, position_embeddings=rotation)
        if number in layers:
            found.append(inner.norm(stream))
    return found


class Optimizers:
    """Muon for the weight matrices, AdamW for embeddings, heads and norms, stepped as one."""

    def __init__(self, model: nn.Module, muon_rate: float = 2e-3, adam_rate: float = 1e-3) -> None:
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "head" not in n]
        chosen = {id(p) for p in matrices}
        others = [p for p in model.parameters() if id(p) not in chosen]
        self._parts: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.AdamW(others, adam_rate, betas=(0.9, 0.98), weight_decay=0.0), adam_rate),
            (torch.optim.Muon(matrices, muon_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"), muon_rate),
        ]

    def step(self, factor: float) -> None:
        """Update the weights at `factor` times the base rates and clear the gradients."""
        for optimizer, base in self._parts:
            for group in optimizer.param_groups:
                group["lr"] = base * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer, _ in self._parts]

    def load(self, state: list[dict[str, Any]]) -> None:
        for (optimizer, _), part in zip(self._parts, state, strict=True):
            optimizer.load_state_dict(part)


class Checkpoint:
    """The file a training resumes from, rewritten at most once a minute and never left half written."""

    def __init__(self, path: Path, model: nn.Module, optimizers: Optimizers) -> None:
        self._path, self._model, self._optimizers = path, model, optimizers
        self._last = time.monotonic()

    def resume(self) -> int:
        """Load the file if there is one; the steps trained so far."""
        if not self._path.exists():
            return 0
        state = torch.load(self._path, map_location="cpu", weights_only=True)
        self._model.load_state_dict(state["model"])
        self._optimizers.load(state["optimizers"])
        return int(state["step"])

    def save(self, step: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        state = {"model": self._model.state_dict(), "optimizers": self._optimizers.state(), "step": step}
        partial = self._path.with_name(self._path.name + ".partial")
        torch.save(state, partial)
        os.replace(partial, self._path)
        self._last = time.monotonic()

    def save_if_due(self, step: int) -> None:
        if time.monotonic() - self._last >= _CHECKPOINT_SECONDS:
            self.save(step)


def rate(step: int, steps: int) -> float:
    """Learning-rate factor: a linear warm-up, flat, and a linear fall to zero over the second half."""
    return min(1.0, (step + 1) / _WARMUP_STEPS, (1.0 - step / steps) / _DECAY_SHARE)


B = TypeVar("B")
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Course(Generic[M, B]):
    """What one training is: the model, its batches from a step on, and its losses, a 1-D tensor to be summed.

    `evaluate(step)` gives figures to show; it is called every `evaluate_every` steps and may keep a copy of the model.
    """

    name: str
    model: M
    batches: Callable[[int], Iterator[B]]
    losses: Callable[[M, B], torch.Tensor]
    loss_names: tuple[str, ...]
    evaluate: Callable[[int], dict[str, float]]
    evaluate_every: int = 100


@dataclass(frozen=True)
class Settings:
    """How to train. The result depends on `seed` and the device; `compiled` (needs a C++ compiler) on a CPU too."""

    seed: int = 1
    device: str = "cpu"
    compiled: bool = False


def train(course: Course[M, B], steps: int, checkpoint_path: Path, settings: Settings) -> None:
    """Train for `steps` steps in all, from the checkpoint at `checkpoint_path` if there is one."""
    model = course.model.to(settings.device)
    optimizers = Optimizers(model)
    checkpoint = Checkpoint(checkpoint_path, model, optimizers)
    step = checkpoint.resume()
    losses_of = torch.compile(course.losses, dynamic=False) if settings.compiled else course.losses
    means: torch.Tensor | None = None
    with Progress(course.name, step, steps) as progress:
        for batch in course.batches(step):
            if step >= steps:
                break
            with torch.autocast(torch.device(settings.device).type, torch.bfloat16):
                losses = losses_of(model, moved(batch, settings.device))
            losses.sum().backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizers.step(rate(step, steps))
            step += 1
            means = losses.detach() if means is None else 0.98 * means + 0.02 * losses.detach()
            if step % 25 == 0 or step == steps:
                progress.advance(step, dict(zip(course.loss_names, means.tolist(), strict=True)))
            if step % course.evaluate_every == 0 or step == steps:
                progress.measured(step, course.evaluate(step))
            checkpoint.save_if_due(step)
    checkpoint.save(step)


def moved(batch: B, device: str) -> B:
    """A batch, a dataclass of tensors, on another device."""
    if device == "cpu":
        return batch
    parts = {field.name: getattr(batch, field.name).to(device) for field in fields(batch)}  # type: ignore[arg-type]
    return type(batch)(**parts)

"""The loop that every training runs: optimizers, the learning rate, and a checkpoint to resume from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from family.training.progress_bar import ProgressBar

_WARMUP_STEPS = 100
_DECAY_SHARE = 0.5
_CHECKPOINT_SECONDS = 60.0
# Steps between two losses shown, and the weight of the losses before in the mean that is shown.
_SHOW_EVERY = 25
_MEMORY = 0.98

B = TypeVar("B")
M = TypeVar("M", bound=nn.Module)


class Optimizers:
    """Muon for the weight matrices, AdamW for embeddings, heads and norms, stepped as one."""

    def __init__(self, model: nn.Module, muon_rate: float = 2e-3, adam_rate: float = 1e-3) -> None:
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "head" not in n]
        matrix_ids = {id(p) for p in matrices}
        others = [p for p in model.parameters() if id(p) not in matrix_ids]
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


class TrainingCheckpoint:
    """The file a training resumes from, rewritten at most once a minute and never left half written."""

    def __init__(self, path: Path, model: nn.Module, optimizers: Optimizers) -> None:
        self._path, self._model, self._optimizers = path, model, optimizers
        self._last = time.monotonic()

    def resume(self) -> int:
        """Load the file if there is one. Returns the number of steps trained so far."""
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


@dataclass(frozen=True)
class Recipe(Generic[M, B]):
    """One training: the model, its batches from a step on, and its losses, a 1-D tensor to be summed.

    `evaluate(step)` returns figures to show. It is called every `evaluate_every` steps and may save the model. `rate`
    multiplies the learning rates. `half`: products are computed in bfloat16, weights and optimizers being float32.
    """

    name: str
    model: M
    batches: Callable[[int], Iterator[B]]
    losses: Callable[[M, B], torch.Tensor]
    loss_names: tuple[str, ...]
    evaluate: Callable[[int], dict[str, float]]
    evaluate_every: int = 100
    rate: float = 1.0
    half: bool = True


@dataclass(frozen=True)
class TrainingSettings:
    """How to train. The result depends on `seed`, the device and, on a CPU, `compiled`, which needs a C++ compiler."""

    seed: int = 1
    device: str = "cpu"
    compiled: bool = False


def train(recipe: Recipe[M, B], steps: int, checkpoint_path: Path, settings: TrainingSettings) -> None:
    """Train for `steps` steps in all, from the checkpoint at `checkpoint_path` if there is one."""
    model = recipe.model.to(settings.device)
    optimizers = Optimizers(model)
    checkpoint = TrainingCheckpoint(checkpoint_path, model, optimizers)
    step = checkpoint.resume()
    losses_of = torch.compile(recipe.losses, dynamic=False) if settings.compiled else recipe.losses
    means: torch.Tensor | None = None
    with ProgressBar(recipe.name, step, steps) as progress:
        for batch in recipe.batches(step):
            if step >= steps:
                break
            with torch.autocast(torch.device(settings.device).type, torch.bfloat16, enabled=recipe.half):
                losses = losses_of(model, to_device(batch, settings.device))
            losses.sum().backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizers.step(recipe.rate * rate(step, steps))
            step += 1
            means = losses.detach() if means is None else _MEMORY * means + (1 - _MEMORY) * losses.detach()
            if step % _SHOW_EVERY == 0 or step == steps:
                progress.advance(step, dict(zip(recipe.loss_names, means.tolist(), strict=True)))
            if step % recipe.evaluate_every == 0 or step == steps:
                progress.measured(step, recipe.evaluate(step))
            checkpoint.save_if_due(step)
    checkpoint.save(step)


def to_device(batch: B, device: str) -> B:
    """A batch (a dataclass of tensors) on another device."""
    if device == "cpu":
        return batch
    parts = {field.name: getattr(batch, field.name).to(device) for field in fields(batch)}  # type: ignore[arg-type]
    return type(batch)(**parts)

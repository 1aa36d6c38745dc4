"""What both trainings share: a fast attention, optimizers, the learning-rate schedule, resumable checkpoints."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

ATTENTION = "zoo_float32_sdpa"
_WARMUP_STEPS = 100
_DECAY_SHARE = 0.5


def _float32_sdpa(
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, scaling: float, **_: Any
) -> tuple[torch.Tensor, None]:
    # On a CPU the backward pass of bfloat16 attention is eight times slower than the float32 one.
    with torch.autocast("cpu", enabled=False):
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True, scale=scaling)
    return out.to(q.dtype).transpose(1, 2), None


AttentionInterface.register(ATTENTION, _float32_sdpa)


def new_model(layers: int, width: int = 192, seed: int = 0) -> LlamaForCausalLM:
    """A fresh Llama of the zoo's shape: heads of 32, two KV heads, tied embeddings, float32."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
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


@dataclass(frozen=True)
class Limit:
    """When a training ends: after this many minutes of training, or after this many steps, whichever is given."""

    minutes: float | None = None
    steps: int | None = None

    def progress(self, step: int, seconds: float) -> float:
        """The share done, 1.0 or more when the limit is reached."""
        by_steps = step / self.steps if self.steps else 0.0
        by_time = seconds / (60 * self.minutes) if self.minutes else 0.0
        return max(by_steps, by_time)


def rate(step: int, progress: float) -> float:
    """Learning-rate factor: a linear warm-up, flat, and a linear fall to zero over the second half."""
    return min(1.0, (step + 1) / _WARMUP_STEPS, max(0.0, (1.0 - progress) / _DECAY_SHARE))


class Optimizers:
    """Muon for the weight matrices, AdamW for embeddings, heads and norms, stepped as one."""

    def __init__(self, model: nn.Module, muon_rate: float = 2e-3, adam_rate: float = 1e-3) -> None:
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "head" not in n]
        chosen = {id(p) for p in matrices}
        others = [p for p in model.parameters() if id(p) not in chosen]
        self._parts: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.AdamW(others, adam_rate, betas=(0.9, 0.98), weight_decay=0.0), adam_rate)
        ]
        if muon_rate > 0:
            muon = torch.optim.Muon(matrices, muon_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
            self._parts.append((muon, muon_rate))
        else:
            adam = torch.optim.AdamW(matrices, adam_rate, betas=(0.9, 0.98), weight_decay=0.01)
            self._parts.append((adam, adam_rate))

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

    def resume(self) -> tuple[int, float]:
        """Load the file if there is one; the step and the seconds trained so far."""
        if not self._path.exists():
            return 0, 0.0
        state = torch.load(self._path, map_location="cpu", weights_only=True)
        self._model.load_state_dict(state["model"])
        self._optimizers.load(state["optimizers"])
        return int(state["step"]), float(state["seconds"])

    def save(self, step: int, seconds: float) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self._model.state_dict(),
            "optimizers": self._optimizers.state(),
            "step": step,
            "seconds": seconds,
        }
        partial = self._path.with_name(self._path.name + ".partial")
        torch.save(state, partial)
        os.replace(partial, self._path)
        self._last = time.monotonic()

    def save_if_due(self, step: int, seconds: float) -> None:
        if time.monotonic() - self._last >= 60:
            self.save(step, seconds)


def note(text: str) -> None:
    """A progress line on stderr."""
    print(text, file=sys.stderr, flush=True)

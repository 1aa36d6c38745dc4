"""Train the generators: the solver, the half-trained copy of it that ships, and the mini model.

The solver learns next tokens on fresh problems and notes. A second loss trains what its middle layer predicts through
the same head (as in LayerSkip, Elhoushi et al. 2024, section 4), so that an early exit predicts something useful. The
copy that ships is the solver at the moment when it is right about half the time. The mini model is far smaller and is
trained for a short time only: it knows the form of every text, and solves little.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from family.tasks.counting import problems
from family.tasks.records import notes
from family.training.batches import IGNORED, CompletionBatch, completion_rows, fresh_batches, pad_rows
from family.training.llama import Shape, hidden_after, new_model
from family.training.loop import Recipe, TrainingSettings, train

SOLVER = Shape(layers=4, width=256, inner=576)
MINI = Shape(layers=2, width=64, inner=160)
MIDDLE_LAYER = 2
_MIDDLE_WEIGHT = 0.3
_RECORDS = 0.85


def solver_losses(model: LlamaForCausalLM, batch: CompletionBatch) -> torch.Tensor:
    """Cross-entropy of the last layer, and of the middle one, weighted."""
    middle, last = hidden_after(model, batch.ids, MIDDLE_LAYER, SOLVER.layers)
    losses = [
        F.cross_entropy(model.lm_head(hidden).float().flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED)
        for hidden in (last, middle)
    ]
    return torch.stack([losses[0], _MIDDLE_WEIGHT * losses[1]])


class HeldOut:
    """Held-out problems and notes other than the shipped ones. Decisions during training are made on these."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, count: int = 300, seed: int = 900) -> None:
        pad = int(tokenizer.pad_token_id or 0)
        solutions = [(problem.text, problem.solution) for problem in islice(problems(seed, "held-out"), count)]
        records = [(note.prompt, note.json) for note in islice(notes(seed, "held-out"), count // 3)]
        self._problems = pad_rows(completion_rows(tokenizer, solutions), pad)
        self._notes = pad_rows(completion_rows(tokenizer, records), pad)

    def shares(self, model: LlamaForCausalLM) -> dict[str, float]:
        """The shares whose greedy continuation is exactly the canonical one, by one forward pass."""
        return {"greedy": _exact(model, self._problems), "records": _exact(model, self._notes)}


@torch.no_grad()
def _exact(model: LlamaForCausalLM, batch: CompletionBatch) -> float:
    targets = batch.targets.to(model.device)
    best = model(input_ids=batch.ids.to(model.device), use_cache=False).logits.argmax(-1)
    return float(((best == targets) | (targets == IGNORED)).all(-1).float().mean())


def train_solver(
    tokenizer: PreTrainedTokenizerFast,
    steps: int,
    checkpoint: Path,
    settings: TrainingSettings,
    until: float,
    half_trained: Callable[[LlamaForCausalLM, int], None],
) -> LlamaForCausalLM:
    """Train the solver; `half_trained(model, step)` is called once, when the greedy share first reaches `until`.

    Most records must come out right by then, too.
    """
    model = new_model(SOLVER, settings.seed)
    held_out = HeldOut(tokenizer)
    reached = False

    def evaluate(step: int) -> dict[str, float]:
        nonlocal reached
        shares = held_out.shares(model)
        if not reached and shares["greedy"] >= until and shares["records"] >= _RECORDS:
            reached = True
            half_trained(model, step)
        return shares

    recipe = Recipe(
        name="solver",
        model=model,
        batches=lambda first: fresh_batches(tokenizer, settings.seed, first),
        losses=solver_losses,
        loss_names=("last", "middle"),
        evaluate=evaluate,
        evaluate_every=50,
    )
    train(recipe, steps, checkpoint, settings)
    return model


def mini_losses(model: LlamaForCausalLM, batch: CompletionBatch) -> torch.Tensor:
    """Cross-entropy of the completions' tokens."""
    counted = batch.targets != IGNORED
    hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state[counted]
    return F.cross_entropy(model.lm_head(hidden).float(), batch.targets[counted])[None]


def train_mini(
    tokenizer: PreTrainedTokenizerFast, steps: int, checkpoint: Path, settings: TrainingSettings
) -> LlamaForCausalLM:
    """Train the mini model on fresh problems and notes."""
    model = new_model(MINI, settings.seed + 1)
    held_out = HeldOut(tokenizer)
    recipe = Recipe(
        name="mini",
        model=model,
        batches=lambda first: fresh_batches(tokenizer, settings.seed + 2, first),
        losses=mini_losses,
        loss_names=("loss",),
        evaluate=lambda step: held_out.shares(model),
        evaluate_every=200,
    )
    train(recipe, steps, checkpoint, settings)
    return model

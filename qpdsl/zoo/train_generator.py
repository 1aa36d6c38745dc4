"""Train the counting generator: next-token loss on the solution, fresh problems in every batch."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from qpdsl.zoo.batches import IGNORED, Batch, pad_rows, solution_batches, solution_rows
from qpdsl.zoo.export import rounded_to_float16, save_folder
from qpdsl.zoo.measure import generator_card, generator_numbers, sample_evaluation_set
from qpdsl.zoo.task import problems
from qpdsl.zoo.tokenizer import build_tokenizer
from qpdsl.zoo.training import Checkpoint, Limit, Optimizers, new_model, note, rate

LAYERS = 4
EVALUATE_EVERY = 100


def solution_loss(model: LlamaForCausalLM, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden).float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def evaluation_batch(tokenizer: PreTrainedTokenizerFast, count: int) -> Batch:
    """Held-out problems other than the shipped evaluation set, to decide by during training."""
    sample = list(islice(problems(900, "held-out"), count))
    return pad_rows(solution_rows(tokenizer, sample), int(tokenizer.pad_token_id or 0))


def greedy_share(model: LlamaForCausalLM, batch: Batch) -> float:
    """The share of problems whose greedy continuation is exactly the canonical solution, by one forward pass."""
    with torch.no_grad():
        best = model(input_ids=batch.ids, use_cache=False).logits.argmax(-1)
    exact = ((best == batch.targets) | (batch.targets == IGNORED)).all(-1)
    return float(exact.float().mean())


def train_generator(out: Path, limit: Limit, seed: int, until: float | None, compiled: bool) -> None:
    """Train to the limit, or until the greedy share on held-out problems reaches `until`; write the folder `out`."""
    tokenizer = build_tokenizer()
    model = new_model(LAYERS, seed=seed)
    optimizers = Optimizers(model)
    checkpoint = Checkpoint(out.with_name(out.name + ".checkpoint.pt"), model, optimizers)
    step, seconds = checkpoint.resume()
    note(f"{model.num_parameters():,} parameters, starting at step {step}")
    loss_of = torch.compile(solution_loss, dynamic=False) if compiled else solution_loss
    held_out = evaluation_batch(tokenizer, 256)
    share, mean_loss, before = 0.0, 0.0, time.monotonic()
    for batch in solution_batches(tokenizer, seed, first=step):
        progress = limit.progress(step, seconds)
        if progress >= 1.0 or (until is not None and share >= until):
            break
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, batch.ids, batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step(rate(step, progress))
        step += 1
        now = time.monotonic()
        seconds, before = seconds + now - before, now
        mean_loss = loss.item() if step == 1 or not mean_loss else 0.98 * mean_loss + 0.02 * loss.item()
        if step % EVALUATE_EVERY == 0:
            share = greedy_share(model, held_out)
            note(f"step {step}  {seconds / 60:.1f} min  loss {mean_loss:.4f}  greedy {share:.3f}")
        checkpoint.save_if_due(step, seconds)
    checkpoint.save(step, seconds)
    write_generator(out, model, tokenizer, f"Trained for {step} steps of 64 fresh problems, seed {seed}.")


def write_generator(out: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, trained: str) -> None:
    """Measure the model as it will ship, in float16, and write its folder."""
    shipped = rounded_to_float16(model)
    numbers = generator_numbers(shipped, tokenizer, sample_evaluation_set(shipped, tokenizer))
    save_folder(out, model, tokenizer, generator_card(shipped, numbers, trained))
    note(f"{out}: {numbers}")

"""Train a built-in model: `python -m qpdsl.zoo.train counting --until 0.5 --minutes 30 --out DIR`.

Running the same command again resumes from the checkpoint next to DIR.
"""

from __future__ import annotations

import argparse
import time
from itertools import islice
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from qpdsl.zoo.batches import IGNORED, Batch, pad_rows, solution_batches, solution_rows
from qpdsl.zoo.task import problems
from qpdsl.zoo.tokenizer import build_tokenizer
from qpdsl.zoo.training import Checkpoint, Limit, Optimizers, new_model, note, rate

EVALUATE_EVERY = 200


def solution_loss(model: LlamaForCausalLM, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden).float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def evaluation_batch(tokenizer: PreTrainedTokenizerFast, count: int) -> Batch:
    sample = list(islice(problems(900, "held-out"), count))
    return pad_rows(solution_rows(tokenizer, sample), int(tokenizer.pad_token_id or 0))


@torch.no_grad()
def greedy_share(model: LlamaForCausalLM, batch: Batch) -> float:
    """The share of problems whose greedy continuation is exactly the canonical solution, by one forward pass."""
    with torch.autocast("cpu", torch.bfloat16):
        best = model(input_ids=batch.ids, use_cache=False).logits.argmax(-1)
    return ((best == batch.targets) | (batch.targets == IGNORED)).all(-1).float().mean().item()


def train_generator(
    out: Path, limit: Limit, seed: int, until: float, compiled: bool, muon: float, save: bool = True
) -> None:
    """Train until the limit, or until the greedy share on held-out problems reaches `until`; write `out`."""
    tokenizer = build_tokenizer()
    model = new_model(layers=4, seed=seed)
    optimizers = Optimizers(model, muon_rate=muon)
    checkpoint = Checkpoint(out.with_name(out.name + ".checkpoint.pt"), model, optimizers)
    step, seconds = checkpoint.resume()
    note(f"{sum(p.numel() for p in model.parameters()):,} parameters, starting at step {step}")
    loss_of = torch.compile(solution_loss, dynamic=False) if compiled else solution_loss
    held_out = evaluation_batch(tokenizer, 256)
    share, mean_loss, started = 0.0, 0.0, time.monotonic()
    for batch in solution_batches(tokenizer, seed, first=step):
        progress = limit.progress(step, seconds)
        if progress >= 1.0 or share >= until:
            break
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, batch.ids, batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step(rate(step, progress))
        step += 1
        now = time.monotonic()
        seconds, started = seconds + now - started, now
        mean_loss = loss.item() if not mean_loss else 0.98 * mean_loss + 0.02 * loss.item()
        if step % 50 == 0:
            if step % EVALUATE_EVERY == 0:
                share = greedy_share(model, held_out)
            note(f"step {step}  {seconds / 60:.1f} min  loss {mean_loss:.4f}  greedy {share:.3f}")
        checkpoint.save_if_due(step, seconds)
    checkpoint.save(step, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m qpdsl.zoo.train", description="train a built-in model")
    parser.add_argument("model", choices=["counting", "counting-prm"])
    parser.add_argument("--minutes", type=float, help="stop after this many minutes of training")
    parser.add_argument("--steps", type=int, help="stop after this many steps")
    parser.add_argument("--until", type=float, default=1.1, help="stop at this greedy share on held-out problems")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--muon", type=float, default=2e-3)
    parser.add_argument("--compile", action="store_true", help="compile the training step (needs a C++ compiler)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    limit = Limit(arguments.minutes, arguments.steps)
    train_generator(arguments.out, limit, arguments.seed, arguments.until, arguments.compile, arguments.muon)


if __name__ == "__main__":
    main()

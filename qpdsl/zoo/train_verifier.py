"""Train the process reward model: a generator's layers, three more on top, and labels from the exact checker."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from qpdsl.zoo.batches import IGNORED
from qpdsl.zoo.comparator import with_comparator
from qpdsl.zoo.export import rounded_to_float16, save_folder
from qpdsl.zoo.measure import generator_numbers, sample_evaluation_set, verifier_card, verifier_numbers
from qpdsl.zoo.mistakes import corrupted, judged
from qpdsl.zoo.sampling import solve
from qpdsl.zoo.task import Problem, Split, problems
from qpdsl.zoo.tokenizer import build_tokenizer
from qpdsl.zoo.training import ATTENTION, Checkpoint, Limit, Optimizers, new_model, note, rate
from qpdsl.zoo.verifier_rows import RowMaker, VerifierBatch, VerifierRow, pad_verifier_rows

LAYERS = 7
EVALUATE_EVERY = 200
LONGEST = 160
"""Rows of more tokens than this are left out; only rambling samples are that long."""

_POOL = 16


class VerifierTrainee(nn.Module):
    """The model that ships, and a probe that is only trained beside it.

    The probe reads two yes-or-no facts at every token: is this token the first wrong one of its step, and was
    anything wrong so far. Labels at step ends alone teach the comparison far more slowly.
    """

    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__()
        self.model = model
        self.probe_head = nn.Linear(model.config.hidden_size, 2)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
        return self.model.lm_head(hidden), self.probe_head(hidden)


def settle(generator: LlamaForCausalLM, batches: Iterator[VerifierBatch], steps: int) -> None:
    """Accustom a generator to the verifier's chat form: what comes next, with mistakes around, loss on words only."""
    generator.set_attn_implementation(ATTENTION)
    optimizers = Optimizers(generator, muon_rate=1e-3)
    for step, batch in enumerate(islice(batches, steps)):
        with torch.autocast("cpu", torch.bfloat16):
            logits = generator(input_ids=batch.ids, use_cache=False).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch.words.flatten(), ignore_index=IGNORED)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizers.step(rate(step, step / steps))
        if step % 50 == 0:
            note(f"settling, step {step}  words {loss.item():.3f}")


def verifier_loss(trainee: VerifierTrainee, batch: VerifierBatch) -> torch.Tensor:
    """The four losses, to be summed: next words, step labels, and the probe's two."""
    logits, probe = trainee(batch.ids)
    logits, probe = logits.float().flatten(0, 1), probe.float()
    words = F.cross_entropy(logits, batch.words.flatten(), ignore_index=IGNORED)
    labels = F.cross_entropy(logits, batch.labels.flatten(), ignore_index=IGNORED)
    slips, spoiled = _probe_loss(probe[..., 0], batch.slips), _probe_loss(probe[..., 1], batch.spoiled)
    return torch.stack([words, labels, slips, spoiled])


def _probe_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    used = (targets != IGNORED).float()
    each = F.binary_cross_entropy_with_logits(logits, targets.clamp(min=0).float(), reduction="none")
    return (each * used).sum() / used.sum()


def step_accuracy(
    trainee: VerifierTrainee, batches: Sequence[VerifierBatch], plus: int, minus: int
) -> tuple[float, float]:
    """The share of steps judged as the checker does: over all steps, and balanced over right and wrong ones."""
    hits: dict[int, list[bool]] = {plus: [], minus: []}
    for batch in batches:
        with torch.no_grad():
            logits, _ = trainee(batch.ids)
        says_plus = logits[..., plus] > logits[..., minus]
        for label in (plus, minus):
            hits[label] += (says_plus[batch.labels == label] == (label == plus)).tolist()
    shares = [sum(found) / max(1, len(found)) for found in hits.values()]
    everything = hits[plus] + hits[minus]
    return sum(everything) / len(everything), sum(shares) / 2


class VerifierData:
    """Fresh rows for every batch: right solutions, corrupted ones, and solutions sampled beforehand."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, seed: int, sampled: Sequence[tuple[Problem, str]], size: int = 64
    ) -> None:
        self.maker = RowMaker(tokenizer)
        self._seed, self._sampled, self._size = seed, sampled, size

    def rows(self, stream: Iterator[Problem], count: int, rng: random.Random) -> list[VerifierRow]:
        made = []
        for problem in islice(stream, count):
            kind = rng.random()
            if self._sampled and kind < 0.4:
                problem, text = rng.choice(self._sampled)
                steps = judged(problem, text)
            elif kind < 0.8:
                steps = corrupted(problem, rng)
            else:
                steps = judged(problem, problem.solution)
            row = self.maker.row(problem.text, steps, empty_last=rng.random() < 0.05)
            if len(row.ids) <= LONGEST:
                made.append(row)
        return made

    def batches(self, first: int) -> Iterator[VerifierBatch]:
        """An endless stream from batch number `first` on."""
        pool, skip = divmod(first, _POOL)
        while True:
            rng = random.Random(f"rows {self._seed} {pool}")
            rows = self.rows(problems(self._seed * 1_000_003 + pool), self._size * _POOL, rng)
            rows.sort(key=lambda row: len(row.ids))
            starts = list(range(0, len(rows), self._size))
            rng.shuffle(starts)
            for start in starts[skip:]:
                yield pad_verifier_rows(rows[start : start + self._size], self.maker.pad)
            pool, skip = pool + 1, 0


def sample_solutions(
    generator: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int, seed: int, split: Split = "train"
) -> list[tuple[Problem, str]]:
    """`count` problems, each with one solution sampled at temperature 0.8."""
    torch.manual_seed(seed)
    chosen = list(islice(problems(seed, split), count))
    texts = solve(generator, tokenizer, [problem.text for problem in chosen], temperature=0.8)
    return list(zip(chosen, texts, strict=True))


def train_verifier(
    out: Path,
    start: Path,
    generator: Path,
    limit: Limit,
    seed: int,
    compiled: bool,
    samples: int = 12_000,
    settle_steps: int = 300,
) -> None:
    """Grow the model in `start`, teach it to judge steps, and write the folder `out`.

    `samples` solutions of the model in `generator` join the corrupted ones.
    """
    tokenizer = build_tokenizer()
    writer = LlamaForCausalLM.from_pretrained(generator, dtype=torch.float32).eval()
    note(f"sampling {samples} solutions")
    data = VerifierData(tokenizer, seed, sample_solutions(writer, tokenizer, samples, seed=seed))
    trainee = VerifierTrainee(new_model(LAYERS, seed=seed))
    optimizers = Optimizers(trainee)
    checkpoint = Checkpoint(out.with_name(out.name + ".checkpoint.pt"), trainee, optimizers)
    step, seconds = checkpoint.resume()
    note(f"{trainee.model.num_parameters():,} parameters, starting at step {step}")
    if step == 0:
        solver = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32)
        settle(solver, VerifierData(tokenizer, seed + 1, []).batches(0), settle_steps)
        example = pad_verifier_rows(data.rows(problems(seed), 160, random.Random(seed)), data.maker.pad)
        model = with_comparator(solver, LAYERS, example.ids, example.slips != IGNORED, seed)
        trainee.model.load_state_dict(model.state_dict())
    fresh = sample_solutions(writer, tokenizer, 256, seed=901, split="held-out")
    held_out = [data.maker.row(problem.text, judged(problem, text)) for problem, text in fresh]
    held_out_batches = [pad_verifier_rows(held_out[i : i + 64], data.maker.pad) for i in range(0, len(held_out), 64)]
    loss_of = torch.compile(verifier_loss, dynamic=False) if compiled else verifier_loss
    means: torch.Tensor | None = None
    before = time.monotonic()
    for batch in data.batches(first=step):
        progress = limit.progress(step, seconds)
        if progress >= 1.0:
            break
        with torch.autocast("cpu", torch.bfloat16):
            losses = loss_of(trainee, batch)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trainee.parameters(), 1.0)
        optimizers.step(rate(step, progress))
        step += 1
        now = time.monotonic()
        seconds, before = seconds + now - before, now
        means = losses.detach() if means is None else 0.98 * means + 0.02 * losses.detach()
        if step % 50 == 0:
            words, labels, slips, spoiled = means.tolist()
            line = f"words {words:.3f}  labels {labels:.3f}  slips {slips:.3f}  spoiled {spoiled:.3f}"
            note(f"step {step}  {seconds / 60:.1f} min  {line}")
        if step % EVALUATE_EVERY == 0:
            plain, balanced = step_accuracy(trainee, held_out_batches, data.maker.plus, data.maker.minus)
            note(f"step {step}  step accuracy on sampled held-out solutions {plain:.3f}, balanced {balanced:.3f}")
        checkpoint.save_if_due(step, seconds)
    checkpoint.save(step, seconds)
    write_verifier(out, trainee.model, writer, tokenizer, f"Trained for {step} steps of 64 rows, seed {seed}.")


def write_verifier(
    out: Path, model: LlamaForCausalLM, generator: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, trained: str
) -> None:
    """Measure the model as it will ship, in float16, on the generator's solutions, and write its folder."""
    shipped = rounded_to_float16(model)
    sampled = sample_evaluation_set(generator, tokenizer)
    without = generator_numbers(generator, tokenizer, sampled)
    numbers = verifier_numbers(shipped, tokenizer, sampled)
    save_folder(out, model, tokenizer, verifier_card(shipped, without, numbers, trained))
    note(f"{out}: {numbers}")

"""Train the process reward model: the solver's layers, three more on top, and labels from the exact checker."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from qpdsl.family.tasks.counting import Problem, problems
from qpdsl.family.tasks.mistakes import corrupted, judged
from qpdsl.family.training.batches import IGNORED, POOL, ROWS
from qpdsl.family.training.comparator import with_comparator
from qpdsl.family.training.generator import SOLVER
from qpdsl.family.training.loop import (
    ATTENTION,
    Course,
    Optimizers,
    Settings,
    Shape,
    hidden_after,
    moved,
    new_model,
    rate,
    train,
)
from qpdsl.family.training.progress import note
from qpdsl.family.training.sampling import Sample, sampled_problems, solve
from qpdsl.family.training.verifier_rows import RowMaker, VerifierBatch, VerifierRow, pad_verifier_rows

VERIFIER = Shape(layers=7, width=SOLVER.width, inner=SOLVER.inner)
LONGEST = 224
"""Rows of more tokens than this are left out; only rambling samples are that long."""

_SETTLE_STEPS = 300
_SAMPLED, _CORRUPTED = 0.5, 0.35  # shares of the rows; the rest are right


class Trainee(nn.Module):
    """The model that ships, and a probe that is only trained beside it.

    The probe reads two yes-or-no facts at every token: is this token the first wrong one of its step, and was
    anything wrong so far. Labels at step ends alone teach the comparison far more slowly.
    """

    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__()
        self.model = model
        self.probe_head = nn.Linear(model.config.hidden_size, 2)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (hidden,) = hidden_after(self.model, ids, VERIFIER.layers)
        return self.model.lm_head(hidden), self.probe_head(hidden)


def verifier_losses(trainee: Trainee, batch: VerifierBatch) -> torch.Tensor:
    """The four losses: what a careful solver writes next, step labels, and the probe's two."""
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


class VerifierData:
    """Fresh rows for every batch: right solutions, corrupted ones, and solutions sampled beforehand."""

    def __init__(self, maker: RowMaker, seed: int, sampled: Sequence[tuple[Problem, str]]) -> None:
        self.maker = maker
        self._seed, self._sampled = seed, sampled

    def rows(self, stream: Iterator[Problem], count: int, rng: random.Random) -> list[VerifierRow]:
        made = []
        for problem in islice(stream, count):
            kind = rng.random()
            if self._sampled and kind < _SAMPLED:
                problem, text = rng.choice(self._sampled)
                steps = judged(problem, text)
            elif kind < _SAMPLED + _CORRUPTED:
                steps = corrupted(problem, rng)
            else:
                steps = judged(problem, problem.solution)
            row = self.maker.row(problem.text, steps, empty_last=rng.random() < 0.05)
            if len(row.ids) <= LONGEST:
                made.append(row)
        return made

    def batches(self, first: int) -> Iterator[VerifierBatch]:
        """An endless stream from batch number `first` on."""
        pool, skip = divmod(first, POOL)
        while True:
            rng = random.Random(f"rows {self._seed} {pool}")
            rows = self.rows(problems(self._seed * 1_000_003 + pool), ROWS * POOL, rng)
            rows.sort(key=lambda row: len(row.ids))
            starts = list(range(0, len(rows), ROWS))
            rng.shuffle(starts)
            for start in starts[skip:]:
                yield pad_verifier_rows(rows[start : start + ROWS], self.maker.pad)
            pool, skip = pool + 1, 0


def settle(solver: LlamaForCausalLM, batches: Iterator[VerifierBatch], settings: Settings) -> None:
    """Accustom the solver to the verifier's chat form: what comes next, with mistakes around, loss on words only."""
    solver.set_attn_implementation(ATTENTION)
    optimizers = Optimizers(solver, muon_rate=1e-3)
    for step, batch in enumerate(islice(batches, _SETTLE_STEPS)):
        batch = moved(batch, settings.device)
        with torch.autocast(torch.device(settings.device).type, torch.bfloat16):
            (hidden,) = hidden_after(solver, batch.ids, SOLVER.layers)
            logits = solver.lm_head(hidden).float().flatten(0, 1)
            loss = F.cross_entropy(logits, batch.words.flatten(), ignore_index=IGNORED)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizers.step(rate(step, _SETTLE_STEPS))
        if step % 50 == 0:
            note(f"prm  settling, step {step}  words {loss.item():.4f}")


@torch.no_grad()
def step_accuracy(trainee: Trainee, batches: Sequence[VerifierBatch], plus: int, minus: int) -> dict[str, float]:
    """The share of steps judged as the checker does: over all steps, and balanced over right and wrong ones."""
    hits: dict[int, list[bool]] = {plus: [], minus: []}
    for batch in batches:
        logits, _ = trainee(batch.ids)
        says_plus = logits[..., plus] > logits[..., minus]
        for label in (plus, minus):
            hits[label] += (says_plus[batch.labels == label] == (label == plus)).tolist()
    shares = [sum(found) / max(1, len(found)) for found in hits.values()]
    everything = hits[plus] + hits[minus]
    return {"step accuracy": sum(everything) / len(everything), "balanced": sum(shares) / 2}


def _held_out_batches(
    writer: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, maker: RowMaker, settings: Settings, count: int = 256
) -> list[VerifierBatch]:
    """Solutions that the generator samples for held-out problems other than the shipped ones."""
    torch.manual_seed(settings.seed)
    chosen = list(islice(problems(901, "held-out"), count))
    texts = solve(writer, tokenizer, [problem.text for problem in chosen], temperature=0.8)
    rows = [maker.row(problem.text, judged(problem, text)) for problem, text in zip(chosen, texts, strict=True) if text]
    starts = range(0, len(rows), ROWS)
    return [moved(pad_verifier_rows(rows[start : start + ROWS], maker.pad), settings.device) for start in starts]


def train_verifier(
    tokenizer: PreTrainedTokenizerFast,
    solver: LlamaForCausalLM,
    generator: LlamaForCausalLM,
    samples: Sequence[Sample],
    steps: int,
    checkpoint: Path,
    settings: Settings,
) -> LlamaForCausalLM:
    """Grow the solver and teach it to judge steps, those that `generator` wrote (`samples`) among them."""
    maker = RowMaker(tokenizer)
    solutions = {sample.number: sample.text for sample in samples if sample.number is not None}
    asked = sampled_problems(max(solutions, default=-1) + 1, settings.seed)
    data = VerifierData(maker, settings.seed, [(asked[number], text) for number, text in solutions.items() if text])
    held_out = _held_out_batches(generator, tokenizer, maker, settings)
    trainee = Trainee(new_model(VERIFIER, settings.seed))
    if not checkpoint.exists():
        settle(solver, VerifierData(maker, settings.seed + 1, []).batches(0), settings)
        example = pad_verifier_rows(data.rows(problems(settings.seed), 160, random.Random(settings.seed)), maker.pad)
        start = with_comparator(solver.cpu(), VERIFIER, example.ids, example.slips != IGNORED, settings.seed)
        trainee.model.load_state_dict(start.state_dict())
    course = Course(
        name="prm",
        model=trainee,
        batches=data.batches,
        losses=verifier_losses,
        loss_names=("words", "labels", "slips", "spoiled"),
        evaluate=lambda step: step_accuracy(trainee, held_out, maker.plus, maker.minus),
        evaluate_every=200,
    )
    train(course, steps, checkpoint, settings)
    return trainee.model

"""Train the process reward model: the solver's layers and three more on top, with labels from the exact checker."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from family.tasks.counting import Problem, problems
from family.tasks.wrong_solutions import corrupted_steps, judged_steps
from family.training.batches import IGNORED, POOL, ROWS
from family.training.comparator import with_comparator
from family.training.generator import SOLVER
from family.training.llama import ATTENTION, Shape, hidden_after, new_model
from family.training.loop import Optimizers, Recipe, TrainingSettings, rate, to_device, train
from family.training.progress_bar import note
from family.training.transformers_sampling import TaskSample, sampled_problems, solve
from family.training.verifier_rows import RowMaker, VerifierBatch, VerifierRow, pad_verifier_rows

VERIFIER = Shape(layers=7, width=SOLVER.width, inner=SOLVER.inner)
LONGEST = 224
"""Rows of more tokens than this are left out. Only samples that never end are that long."""

_ADAPTATION_STEPS = 300
_SAMPLED, _CORRUPTED = 0.5, 0.35  # shares of the rows; the rest are right


class VerifierWithProbe(nn.Module):
    """The model that ships, and a probe that is only used in training.

    The probe answers two yes-or-no questions at every token: is this token the first wrong one of its step, and was
    anything wrong so far. Labels at step ends alone teach the comparison far more slowly.
    """

    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__()
        self.model = model
        self.probe_head = nn.Linear(model.config.hidden_size, 2)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (hidden,) = hidden_after(self.model, ids, VERIFIER.layers)
        return self.model.lm_head(hidden), self.probe_head(hidden)


def verifier_losses(trainee: VerifierWithProbe, batch: VerifierBatch) -> torch.Tensor:
    """The four losses: what a careful solver writes next, step labels, and the probe's two."""
    logits, probe = trainee(batch.ids)
    logits, probe = logits.float().flatten(0, 1), probe.float()
    words = F.cross_entropy(logits, batch.words.flatten(), ignore_index=IGNORED)
    labels = F.cross_entropy(logits, batch.labels.flatten(), ignore_index=IGNORED)
    first_errors = _probe_loss(probe[..., 0], batch.first_errors)
    after_error = _probe_loss(probe[..., 1], batch.after_error)
    return torch.stack([words, labels, first_errors, after_error])


def _probe_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    used = (targets != IGNORED).float()
    losses = F.binary_cross_entropy_with_logits(logits, targets.clamp(min=0).float(), reduction="none")
    return (losses * used).sum() / used.sum()


class VerifierData:
    """Fresh rows for every batch: right solutions, corrupted ones, and solutions sampled beforehand."""

    def __init__(self, maker: RowMaker, seed: int, sampled: Sequence[tuple[Problem, str]]) -> None:
        self.maker = maker
        self._seed, self._sampled = seed, sampled

    def rows(self, stream: Iterator[Problem], count: int, rng: random.Random) -> list[VerifierRow]:
        rows = []
        for problem in islice(stream, count):
            kind = rng.random()
            if self._sampled and kind < _SAMPLED:
                problem, text = rng.choice(self._sampled)
                steps = judged_steps(problem, text)
            elif kind < _SAMPLED + _CORRUPTED:
                steps = corrupted_steps(problem, rng)
            else:
                steps = judged_steps(problem, problem.solution)
            row = self.maker.row(problem.text, steps, empty_last=rng.random() < 0.05)
            if len(row.ids) <= LONGEST:
                rows.append(row)
        return rows

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


def adapt_to_chat_form(solver: LlamaForCausalLM, batches: Iterator[VerifierBatch], settings: TrainingSettings) -> None:
    """Train the solver on the verifier's chat form, mistakes included, with loss on the words that come next only."""
    solver.set_attn_implementation(ATTENTION)
    optimizers = Optimizers(solver, muon_rate=1e-3)
    for step, batch in enumerate(islice(batches, _ADAPTATION_STEPS)):
        batch = to_device(batch, settings.device)
        with torch.autocast(torch.device(settings.device).type, torch.bfloat16):
            (hidden,) = hidden_after(solver, batch.ids, SOLVER.layers)
            logits = solver.lm_head(hidden).float().flatten(0, 1)
            loss = F.cross_entropy(logits, batch.words.flatten(), ignore_index=IGNORED)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizers.step(rate(step, _ADAPTATION_STEPS))
        if step % 50 == 0:
            note(f"prm  settling, step {step}  words {loss.item():.4f}")


@torch.no_grad()
def step_accuracy(
    trainee: VerifierWithProbe, batches: Sequence[VerifierBatch], plus: int, minus: int
) -> dict[str, float]:
    """The share of steps judged as the checker does: over all steps, and balanced over right and wrong ones."""
    hits: dict[int, list[bool]] = {plus: [], minus: []}
    for batch in batches:
        logits, _ = trainee(batch.ids)
        says_plus = logits[..., plus] > logits[..., minus]
        for label in (plus, minus):
            hits[label] += (says_plus[batch.labels == label] == (label == plus)).tolist()
    shares = [sum(flags) / max(1, len(flags)) for flags in hits.values()]
    all_hits = hits[plus] + hits[minus]
    return {"step accuracy": sum(all_hits) / len(all_hits), "balanced": sum(shares) / 2}


def _held_out_batches(
    writer: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    maker: RowMaker,
    settings: TrainingSettings,
    count: int = 256,
) -> list[VerifierBatch]:
    """Solutions that the generator samples for held-out problems other than the shipped ones."""
    torch.manual_seed(settings.seed)
    unseen = list(islice(problems(901, "held-out"), count))
    texts = solve(writer, tokenizer, [problem.text for problem in unseen], temperature=0.8)
    pairs = zip(unseen, texts, strict=True)
    rows = [maker.row(problem.text, judged_steps(problem, text)) for problem, text in pairs if text]
    starts = range(0, len(rows), ROWS)
    return [to_device(pad_verifier_rows(rows[start : start + ROWS], maker.pad), settings.device) for start in starts]


def train_verifier(
    tokenizer: PreTrainedTokenizerFast,
    solver: LlamaForCausalLM,
    generator: LlamaForCausalLM,
    samples: Sequence[TaskSample],
    steps: int,
    checkpoint: Path,
    settings: TrainingSettings,
) -> LlamaForCausalLM:
    """Grow the solver and teach it to judge steps. The `samples` that `generator` wrote are among the data."""
    maker = RowMaker(tokenizer)
    solutions = {sample.number: sample.text for sample in samples if sample.number is not None}
    sources = sampled_problems(max(solutions, default=-1) + 1, settings.seed)
    pairs = [(sources[number], text) for number, text in solutions.items() if text]
    data = VerifierData(maker, settings.seed, pairs)
    held_out = _held_out_batches(generator, tokenizer, maker, settings)
    trainee = VerifierWithProbe(new_model(VERIFIER, settings.seed))
    if not checkpoint.exists():
        adapt_to_chat_form(solver, VerifierData(maker, settings.seed + 1, []).batches(0), settings)
        example = pad_verifier_rows(data.rows(problems(settings.seed), 160, random.Random(settings.seed)), maker.pad)
        start = with_comparator(solver.cpu(), VERIFIER, example.ids, example.first_errors != IGNORED, settings.seed)
        trainee.model.load_state_dict(start.state_dict())
    recipe = Recipe(
        name="prm",
        model=trainee,
        batches=data.batches,
        losses=verifier_losses,
        loss_names=("words", "labels", "slips", "spoiled"),
        evaluate=lambda step: step_accuracy(trainee, held_out, maker.plus, maker.minus),
        evaluate_every=200,
    )
    train(recipe, steps, checkpoint, settings)
    return trainee.model

"""Train a drafting head for the generator: one layer that goes on from the generator's last hidden states.

EAGLE (Li et al., 2024, section 3): a feature is the generator's hidden state after its last norm, as its head reads it.
From the feature of a position and the token that came next the head predicts the next position's feature, and the
generator's own head makes tokens of that. The folder is one in EAGLE's published format.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from family.training.batches import IGNORED, POOL, ROWS, CompletionBatch, completion_rows, shuffled_batches
from family.training.export import replacing
from family.training.llama import hidden_after
from family.training.loop import Recipe, TrainingSettings, train
from qpdsl.executor.engine.draft.eagle_head import EagleHead
from qpdsl.executor.models.eagle_checkpoint import save_head

INNER = 192
# The paper's weight of the tokens' loss beside the features', and the width of its noise on features; learning rates
# against the usual ones.
_TOKEN_WEIGHT = 0.1
_NOISE = 0.2
_RATE = 2.0


def new_head(generator: LlamaConfig, inner: int, seed: int) -> EagleHead:
    """A fresh float32 head for a Llama; `inner` is the width inside its MLP."""
    torch.manual_seed(seed)
    shape = {"num_hidden_layers": 1, "intermediate_size": inner, "dtype": "float16"}
    return EagleHead(LlamaConfig(**{**generator.to_dict(), **shape}))


def eagle_losses(head: EagleHead, generator: LlamaForCausalLM, batch: CompletionBatch) -> torch.Tensor:
    """The smooth L1 distance of features, and the cross-entropy with the generator's own distribution, weighted.

    Both over the positions at which a token of a completion is drawn.
    """
    counted = batch.targets[:, 1:] != IGNORED
    with torch.no_grad():
        (features,) = hidden_after(generator, batch.ids, generator.config.num_hidden_layers)
        embedded = generator.model.embed_tokens(batch.ids[:, 1:])
        wanted = features[:, 1:][counted].float()
        probabilities = generator.lm_head(wanted).float().softmax(-1)
        known = features[:, :-1]
        known = known + (torch.rand_like(known) - 0.5) * _NOISE
    predicted = head(embedded, known)[counted]
    distance = F.smooth_l1_loss(predicted.float(), wanted)
    return torch.stack([distance, _TOKEN_WEIGHT * F.cross_entropy(generator.lm_head(predicted).float(), probabilities)])


def sampled_batches(
    tokenizer: PreTrainedTokenizerFast, sampled: Sequence[tuple[str, str]], seed: int, first: int
) -> Iterator[CompletionBatch]:
    """An endless stream of batches drawn from (user turn, completion), from batch number `first` on."""
    pool, skip = divmod(first, POOL)
    while True:
        rng = random.Random(f"eagle {seed} {pool}")
        rows = completion_rows(tokenizer, rng.choices(sampled, k=ROWS * POOL))
        yield from islice(shuffled_batches(rows, int(tokenizer.pad_token_id or 0), rng), skip, None)
        pool, skip = pool + 1, 0


@torch.no_grad()
def same_tokens(head: EagleHead, generator: LlamaForCausalLM, batch: CompletionBatch) -> float:
    """The share of the completions' tokens, but for the first, where the head's likeliest is the generator's."""
    batch_ids, targets = batch.ids.to(generator.device), batch.targets.to(generator.device)
    (features,) = hidden_after(generator, batch_ids, generator.config.num_hidden_layers)
    predicted = head(generator.model.embed_tokens(batch_ids[:, 1:]), features[:, :-1])
    same = generator.lm_head(predicted).argmax(-1) == generator.lm_head(features[:, 1:]).argmax(-1)
    return float(same[targets[:, 1:] != IGNORED].float().mean())


def train_eagle(
    tokenizer: PreTrainedTokenizerFast,
    generator: LlamaForCausalLM,
    sampled: Sequence[tuple[str, str]],
    steps: int,
    checkpoint: Path,
    settings: TrainingSettings,
    inner: int = INNER,
) -> EagleHead:
    """Train a head for `generator`; `sampled` are (user turn, the generator's completion)."""
    generator = generator.to(settings.device).eval()
    head = new_head(generator.config, inner, settings.seed + 3)
    shown = next(sampled_batches(tokenizer, sampled, settings.seed + 4, 0))
    recipe = Recipe(
        name="eagle",
        model=head,
        batches=lambda first: sampled_batches(tokenizer, sampled, settings.seed + 3, first),
        losses=lambda student, batch: eagle_losses(student, generator, batch),
        loss_names=("features", "tokens"),
        evaluate=lambda step: {"same token": same_tokens(head, generator, shown)},
        evaluate_every=100,
        rate=_RATE,
        half=False,
    )
    train(recipe, steps, checkpoint, settings)
    return head


def save_eagle(out: Path, head: EagleHead) -> None:
    """Write the head in EAGLE's format, in float16, to `out`, replacing an earlier folder at once.

    The generator's embeddings, with which it was trained, are not written again.
    """
    with replacing(out) as partial:
        save_head(copy.deepcopy(head).half(), partial)

"""A LoRA adapter fine-tuned on right answers of a saved run, in the tokens that were drawn (extra `train`)."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from qpdsl.errors import UsageError, installing
from qpdsl.runs.training_forms import SavedRow

if TYPE_CHECKING:
    import torch

_IGNORED = -100
# Nothing is fetched, and no checkpoint runs code.
_SAFELY = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """How an adapter is trained: AdamW on batches of so many sequences, at a `rate` that falls to 0 along a cosine.

    `rank`: that of the adapter in every linear layer but the head; its scale is twice that (Hu et al., 2022,
    section 4.1).
    """

    epochs: int = 1
    rate: float = 1e-3
    batch: int = 16
    rank: int = 16
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LearnedSequence:
    """Token ids, of which those are learned that are no label of -100."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]


def learned_sequences(rows: Sequence[SavedRow], model: str) -> list[LearnedSequence]:
    """The answers that `--as sft` would write, as far as `model` drew them, in its tokens.

    Tokens that a program or a constraint wrote are no part of what is learned.
    """
    found = []
    for row in rows:
        for own in row.learned:
            drawn = row.drawn(own)
            if drawn is None or drawn.model != model:
                continue
            labels = [id if is_drawn else _IGNORED for id, is_drawn in zip(drawn.response, drawn.mask, strict=True)]
            found.append(
                LearnedSequence((*drawn.prompt, *drawn.response), (*(_IGNORED for _ in drawn.prompt), *labels))
            )
    return found


def fine_tuned(
    folder: Path,
    name: str,
    sequences: Sequence[LearnedSequence],
    tuning: AdapterSettings,
    tell: Callable[[int, int, float], None],
) -> Any:
    """The model in `folder` with a trained adapter, for `save_adapter`; `name` is the model's id.

    `tell` is called after each epoch with its number, the steps so far and the mean loss of a token in nats. The same
    sequences and seed give the same adapter on the same machine with as many threads. Raises UsageError without peft,
    and for a model that is no checkpoint of transformers.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise UsageError("fine-tuning needs peft", installing("train")) from error
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(tuning.seed)
    try:
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **_SAFELY)
    except (OSError, ValueError) as error:
        raise UsageError(f"`{name}` cannot be trained: {error}") from error
    config = LoraConfig(r=tuning.rank, lora_alpha=2 * tuning.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config).to("cuda" if torch.cuda.is_available() else "cpu")
    model.train()
    steps = tuning.epochs * math.ceil(len(sequences) / tuning.batch)
    optimizer = torch.optim.AdamW([part for part in model.parameters() if part.requires_grad], lr=tuning.rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(step / steps, 1.0)))
    )
    chance, step = random.Random(tuning.seed), 0
    for epoch in range(1, tuning.epochs + 1):
        total, tokens = 0.0, 0
        for batch in _batches(sequences, tuning.batch, chance):
            ids, labels, seen = (part.to(model.device) for part in batch)
            loss = model(input_ids=ids, attention_mask=seen, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            count = int((labels[:, 1:] != _IGNORED).sum())
            total, tokens, step = total + float(loss.detach()) * count, tokens + count, step + 1
        tell(epoch, step, total / tokens)
    # A path of this machine would be in the adapter else.
    for own in model.peft_config.values():
        own.base_model_name_or_path = name
    return model


def begins_adapter(file: BinaryIO) -> bool:
    """Whether the first of `ADAPTER_FILES` is that of an adapter."""
    try:
        return "peft_type" in json.load(file)
    except (ValueError, TypeError):
        return False


def save_adapter(model: Any, folder: Path) -> None:
    """Writes `ADAPTER_FILES`, which `--adapter` loads."""
    # Else it would ask the hub whether the vocabulary was changed.
    model.save_pretrained(folder, save_embedding_layers=False)
    for file in folder.iterdir():
        if file.name not in ADAPTER_FILES:
            os.unlink(file)


ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def _batches(
    sequences: Sequence[LearnedSequence], size: int, chance: random.Random
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Ids, labels and which ids are there int64 [B, T], in an order by chance; shorter ones are padded at their end."""
    import torch

    order = chance.sample(range(len(sequences)), len(sequences))
    for first in range(0, len(order), size):
        own = [sequences[place] for place in order[first : first + size]]
        longest = max(len(one.ids) for one in own)
        pads = [longest - len(one.ids) for one in own]
        yield (
            torch.tensor([(*one.ids, *(0,) * pad) for one, pad in zip(own, pads, strict=True)]),
            torch.tensor([(*one.labels, *(_IGNORED,) * pad) for one, pad in zip(own, pads, strict=True)]),
            torch.tensor([(1,) * len(one.ids) + (0,) * pad for one, pad in zip(own, pads, strict=True)]),
        )

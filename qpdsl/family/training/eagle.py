"""Train a drafting head for the generator: one layer that goes on from the generator's last hidden states.

EAGLE (Li et al., 2024, section 3): a feature is the generator's hidden state after its last norm, as its head reads it.
From the feature of a position and the token that came next the head predicts the next position's feature, and the
generator's own head makes tokens of that. The folder is one in EAGLE's published format.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from qpdsl.family.training.batches import IGNORED, POOL, ROWS, CompletionBatch, completion_rows, shuffled_batches
from qpdsl.family.training.export import replacing
from qpdsl.family.training.llama import ATTENTION, hidden_after
from qpdsl.family.training.loop import Recipe, Settings, train

INNER = 192
# The paper's weight of the tokens' loss beside the features', and the width of its noise on features.
_TOKEN_WEIGHT = 0.1
_NOISE = 0.2


class EagleHead(nn.Module):
    """EAGLE's head for a Llama: `fc` joins an embedding and a feature, and one layer without a first norm follows.

    `inner` is the width inside the layer's MLP.
    """

    def __init__(self, generator: LlamaConfig, inner: int) -> None:
        super().__init__()
        self.config = LlamaConfig(
            **{**generator.to_dict(), "num_hidden_layers": 1, "intermediate_size": inner, "dtype": "float16"},
            attn_implementation=ATTENTION,
        )
        width = self.config.hidden_size
        self.fc = nn.Linear(2 * width, width)
        layer = LlamaDecoderLayer(self.config, 0)
        layer.input_layernorm = nn.Identity()
        self.layers = nn.ModuleList([layer])
        self.rotation = LlamaRotaryEmbedding(self.config)
        for weight in (self.fc.weight, *(p for p in layer.parameters() if p.ndim == 2)):
            nn.init.normal_(weight, std=self.config.initializer_range)
        nn.init.zeros_(self.fc.bias)

    def forward(self, embedded: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """The features one position on, [rows, width, hidden].

        `features` are the generator's, `embedded` the embeddings of the tokens one position on: both of that shape.
        """
        stream: torch.Tensor = self.fc(torch.cat((embedded, features), -1))
        places = torch.arange(stream.shape[1], device=stream.device)[None]
        for layer in self.layers:
            stream = layer(stream, attention_mask=None, position_embeddings=self.rotation(stream, places))
        return stream


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
    settings: Settings,
    inner: int = INNER,
) -> EagleHead:
    """Train a head for `generator`; `sampled` are (user turn, the generator's completion)."""
    torch.manual_seed(settings.seed + 3)
    generator = generator.to(settings.device).eval()
    head = EagleHead(generator.config, inner)
    shown = next(sampled_batches(tokenizer, sampled, settings.seed + 4, 0))
    recipe = Recipe(
        name="eagle",
        model=head,
        batches=lambda first: sampled_batches(tokenizer, sampled, settings.seed + 3, first),
        losses=lambda student, batch: eagle_losses(student, generator, batch),
        loss_names=("features", "tokens"),
        evaluate=lambda step: {"same token": same_tokens(head, generator, shown)},
        evaluate_every=100,
    )
    train(recipe, steps, checkpoint, settings)
    return head


def save_eagle(out: Path, head: EagleHead) -> None:
    """Write the head in EAGLE's format, in float16, to `out`, replacing an earlier folder at once.

    `config.json` is a Llama's of one layer; the generator's embeddings and head are not written again.
    """
    with replacing(out) as partial:
        config = {"architectures": ["LlamaForCausalLM"], **head.config.to_diff_dict(), "bias": True}
        (partial / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        weights = {name: weight.detach().cpu().half().contiguous() for name, weight in head.state_dict().items()}
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})

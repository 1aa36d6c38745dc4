"""The models and prompts that the benchmarks run on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Qwen2Config

from family.tasks.counting import problems
from qpdsl import zoo
from qpdsl.executor.text.context import Context, encode

COUNTING = "zoo/counting"
HALF = "0.5B"


def half_billion(seed: int = 0) -> PreTrainedModel:
    """Random float32 weights in the shape of Qwen2-0.5B: 24 layers, 494 million parameters."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=151_936,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        # Large enough that greedy decoding does not fall into one repeated token.
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def folder_of(name: str, scratch: Path) -> Path:
    """The folder of a built-in model, or of the random one, which is written into `scratch` first."""
    if name != HALF:
        return zoo.path(name)
    folder = scratch / "half-billion"
    if not (folder / "config.json").exists():
        half_billion().save_pretrained(folder)
    return folder


def counting_prompts(count: int, seed: int = 1) -> list[tuple[int, ...]]:
    """Chat prompts of held-out counting problems, as the built-in generator reads them."""
    return chat_prompts([problem.text for problem in islice(problems(seed=seed, split="held-out"), count)])


def chat_prompts(texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Prompts of the built-in family with one turn each."""
    tokenizer = AutoTokenizer.from_pretrained(zoo.path(COUNTING))
    return [encode(tokenizer, Context(turns=(("user", text),))) for text in texts]


def random_prompts(count: int, length: int, vocabulary: int, seed: int = 1) -> list[tuple[int, ...]]:
    """`count` prompts of `length` ids drawn evenly, leaving out the first hundred, where special ids lie."""
    draw = random.Random(seed)
    return [tuple(draw.randrange(100, vocabulary) for _ in range(length)) for _ in range(count)]

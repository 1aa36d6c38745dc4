"""Models that keep transformers' modules: a sample's bits are its own there too, with experts and in 16 bits."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.requests.request import GenerateRequest, ReadRequest, Sample, SamplingParams
from tests.support.executor.families import Family, families, tiny
from tests.support.executor.models import engine_of, served
from tests.support.executor.threads import threads

FLOAT32 = ("mixtral", "qwen3_moe", "qwen2_moe", "gpt_oss", "gpt2", "gpt_neox", "persimmon", "gpt_bigcode", "gemma2")
# Chunks, a penalty for distance, layers of several shapes, and latent vectors.
OTHERWISE = ("llama4_text", "falcon (with alibi)", "mimo_v2_flash", "deepseek_v2")
NARROW = ("mixtral", "gpt_oss", "gpt2")
# Wide enough for several threads to share the work, and no multiple of a vector.
WIDE = {"num_hidden_layers": 1, "hidden_size": 128, "head_dim": 16, "num_attention_heads": 8}


@cache
def requests() -> tuple[GenerateRequest, ...]:
    """64 samples, with prompts that share prefixes."""
    rng = random.Random(7)
    stem = [rng.randrange(3, 100) for _ in range(40)]
    batch = []
    for index in range(32):
        prompt = stem[: rng.choice([0, 16, 33])] + [rng.randrange(3, 100) for _ in range(rng.randint(1, 20))]
        batch.append(GenerateRequest(tuple(prompt), (index, index + 99), SamplingParams(0.9), rng.randint(1, 6)))
    return tuple(batch)


def some(batch: tuple[GenerateRequest, ...], model: PagedModel, config: EngineConfig) -> list[tuple[Sample, ...]]:
    return served(engine_of(model, 300, config), batch)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in (*FLOAT32, *OTHERWISE)), *((name, torch.bfloat16) for name in NARROW)],
    ids=str,
)
def test_samples_are_the_same_bits_in_every_company(name: str, dtype: torch.dtype) -> None:
    model = PagedModel(tiny(families()[name]).to(dtype))
    assert model.least_rows == 1 and not model.mixes_rows
    together = some(requests(), model, EngineConfig())
    assert some(requests()[:6], model, EngineConfig(max_sequences=1)) == together[:6]
    assert some(requests()[6:13], model, EngineConfig(max_sequences=7, token_budget=11)) == together[6:13]


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "starcoder2", "gemma2"])
def test_threads_and_cuts_of_a_prompt_change_no_bit(name: str) -> None:
    family = Family(name, {**families()[name].changes, **WIDE, "intermediate_size": 1000})
    model = PagedModel(tiny(family))
    tokens = tuple(random.Random(3).randrange(3, 100) for _ in range(150))
    read = ReadRequest(tokens, tuple(range(150)), (3, 50))
    logits = []
    for count, budget in ((1, 256), (2, 256), (2, 64), (1, 1)):
        with threads(count):
            engine = PagedEngine(EngineConfig(token_budget=budget))
            engine.add("m", model)
            ticket = engine.submit("m", read)
            while engine.has_work:
                engine.step()
            logits.append(ticket.result().logits)
    assert all(other == logits[0] for other in logits[1:])

"""Attention sinks (gpt-oss) by compiled kernels, by torch, and by the twins of a GPU's: the tokens of `generate`."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM, GptOssConfig, PreTrainedModel

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from tests.support.executor.models import VOCABULARY, engine_of, served

TOKENS = 12


@pytest.fixture(autouse=True)
def _twins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)


def gpt_oss(weighed: bool = True) -> PreTrainedModel:
    """Random weights; every other layer slides a window of 24 tokens. Unless `weighed`, its sinks take no weight."""
    torch.manual_seed(0)
    config = GptOssConfig(
        hidden_size=48,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        vocab_size=VOCABULARY,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for layer in model.model.layers:
        sinks = layer.self_attn.sinks
        torch.nn.init.normal_(sinks, 0.0, 3.0) if weighed else torch.nn.init.constant_(sinks, -1e9)
    return model


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """Some over one prefix that is long enough to be read once, some of their own."""
    rng = random.Random(3)
    stem = tuple(rng.randrange(1, VOCABULARY) for _ in range(140))
    own = [tuple(rng.randrange(1, VOCABULARY) for _ in range(length)) for length in (3, 17, 40, 70)]
    return (*(stem + text[:9] for text in own), *own)


@cache
def expected() -> list[tuple[int, ...]]:
    model = gpt_oss()
    return [
        tuple(model.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False)[0, len(prompt) :].tolist())
        for prompt in prompts()
    ]


@pytest.mark.parametrize(
    ("pages", "config"),
    [(400, EngineConfig()), (400, EngineConfig(token_budget=20)), (12, EngineConfig(token_budget=37))],
    ids=["batch", "chunked", "little-memory"],
)
def test_tokens_are_those_of_generate(pages: int, config: EngineConfig) -> None:
    reports: list[StepReport] = []
    engine = engine_of(PagedModel(gpt_oss(), kernels=True), pages, config, reports.append)
    requests = tuple(GenerateRequest(prompt, (0,), SamplingParams(0.0), TOKENS) for prompt in prompts())
    assert [samples[0].tokens for samples in served(engine, requests)] == expected()
    if pages < 100:
        assert reports[-1].evictions > 0


def test_the_sinks_are_what_it_takes() -> None:
    """Without them other tokens come out, so the test above would see them missing."""
    engine = engine_of(PagedModel(gpt_oss(weighed=False), kernels=True))
    requests = tuple(GenerateRequest(prompt, (0,), SamplingParams(0.0), TOKENS) for prompt in prompts())
    assert [samples[0].tokens for samples in served(engine, requests)] != expected()


@pytest.mark.parametrize("native", [True, False])
def test_on_a_cpu_the_tokens_are_the_same(native: bool) -> None:
    model = PagedModel(gpt_oss(), native=native)
    assert model.native is native and not model.mixes_rows
    requests = tuple(GenerateRequest(prompt, (0,), SamplingParams(0.0), TOKENS) for prompt in prompts())
    assert [samples[0].tokens for samples in served(engine_of(model), requests)] == expected()

"""What cannot run on the paged engine is refused when it is loaded, with a reason."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertGenerationConfig,
    BloomConfig,
    FalconConfig,
    GptOssConfig,
    GraniteConfig,
    MambaConfig,
    NemotronConfig,
    Phi3Config,
    PhimoeConfig,
    PretrainedConfig,
)

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.requests.errors import EngineError, UnsupportedModel
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from tests.support.executor.models import paged

REFUSED: list[tuple[PretrainedConfig, str]] = [
    (BloomConfig(hidden_size=32, n_layer=2, n_head=2, vocab_size=50), "trial run failed|reaches 0 of its 2 layers"),
    (
        FalconConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50, alibi=False),
        "cannot be replaced|trial run failed|reaches 0 of its 2 layers",
    ),
    (MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=50, state_size=4), "no attention shape"),
    (
        GptOssConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            vocab_size=50,
            intermediate_size=32,
            num_local_experts=4,
            num_experts_per_tok=2,
        ),
        "attention sinks",
    ),
    (
        NemotronConfig(
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            vocab_size=50,
        ),
        "do not hand a forward's keyword arguments on",
    ),
    (
        BertGenerationConfig(
            hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50
        ),
        "more than paged attention|not causal|trial run failed",
    ),
    (
        PhimoeConfig(
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            vocab_size=50,
            num_local_experts=2,
            sliding_window=200,
        ),
        "do not tell attention of their window of 200 tokens",
    ),
    (
        Phi3Config(
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            vocab_size=50,
            pad_token_id=0,
            original_max_position_embeddings=32,
            max_position_embeddings=128,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 32,
            },
        ),
        "longrope",
    ),
]


@pytest.mark.parametrize(("config", "reason"), REFUSED, ids=[config.model_type for config, _ in REFUSED])
def test_models_that_attention_does_not_reach_are_refused(config: PretrainedConfig, reason: str) -> None:
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with pytest.raises(UnsupportedModel, match=reason):
        PagedModel(model)


def test_a_scaled_head_is_reproduced() -> None:
    config = GraniteConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
        logits_scaling=4.0,
        initializer_range=0.3,
    )
    PagedModel(AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval())


def test_a_head_that_is_not_what_it_seems_is_refused() -> None:
    config = GraniteConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=50
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    original = model.forward

    def forward(*args: object, **kwargs: object) -> object:
        output = original(*args, **kwargs)
        output.logits = output.logits + 5.0
        return output

    model.forward = forward
    with pytest.raises(UnsupportedModel, match="more than paged attention and a projection"):
        PagedModel(model)


def test_a_prompt_longer_than_the_context_is_refused() -> None:
    engine = PagedEngine()
    engine.add("m", paged("llama"))
    with pytest.raises(EngineError, match="256 tokens, m takes 255"):
        engine.submit("m", GenerateRequest(tuple([1] * 256), (0,), SamplingParams(), 1))


def test_a_token_that_the_model_does_not_know_is_refused() -> None:
    engine = PagedEngine()
    engine.add("m", paged("llama"))
    with pytest.raises(EngineError, match="token 101 is none of the 101"):
        engine.submit("m", GenerateRequest((1, 101), (0,), SamplingParams(), 1))

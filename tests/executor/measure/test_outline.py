"""A model by its configuration: as many parameters, and keys and values, as the model that is built from it has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.measure.outline import outline
from qpdsl.planner.capacity.architecture import published_models
from qpdsl.planner.capacity.roofline_report import roofline_report
from tests.support.executor.families import Family, families, is_release, tiny

# Grouped heads, biases, norms of heads, shared heads, windows, experts with and without ones that all tokens use.
NAMES = (
    "llama", "gemma", "gemma2", "gemma3_text", "qwen2", "qwen3", "phi3", "olmo2", "glm4", "gpt2", "gpt_neox", "mixtral",
    "deepseek_v2", "minicpm3",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_it_counts_what_is_loaded(name: str) -> None:
    if not is_release():
        pytest.skip("the families are those of another release of transformers")
    model = tiny(families().get(name, Family(name)))
    described = outline(name, model.config.to_dict())
    assert described.parameters == model.num_parameters()
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert described.looked_up == (0 if head.weight is embedding.weight else embedding.weight.numel())
    layout = PagedModel(model, native=False).layout
    assert described.token_kv_bytes(4) == layout.token_bytes
    kept = layout.shapes[0]
    assert (described.layers, described.kv_heads, described.head_dim) == (layout.layers, kept.kv_heads, kept.key)


@pytest.mark.parametrize("name", ["bamba", "falcon_h1", "lfm2", "qwen3_5_text"])
def test_it_counts_what_layers_keep_of_a_sequence(name: str) -> None:
    if not is_release():
        pytest.skip("the families are those of another release of transformers")
    model = tiny(families()[name])
    described = outline(name, {**model.config.to_dict(), "dtype": "float32"})
    paged = PagedModel(model)
    assert paged.states is not None and described.parameters == paged.parameters
    assert described.token_kv_bytes(4) == paged.layout.token_bytes
    assert (described.layers, described.state_bytes) == (paged.layout.layers, paged.states.block_bytes)
    assert described.kv_bytes(10, 4) == 10 * paged.layout.token_bytes + paged.states.block_bytes


@pytest.mark.parametrize(("name", "layers"), [("deepseek_v2", 60), ("deepseek_v3", 61)])
def test_latent_attention_takes_what_its_paper_says(name: str, layers: int) -> None:
    """(d_c + d_h^R) · l numbers a token: DeepSeek-V2 (2024), section 2.1.4, with 512 and 64 there."""
    described = outline(name, CONFIG_MAPPING[name](num_hidden_layers=layers).to_dict())
    report = roofline_report(described, [], "bf16", 1.0, kv_types=("fp16",))
    assert report.token_bytes["fp16"] == (512 + 64) * 2 * layers
    assert report.sequence_bytes["fp16"][4096] == 4096 * report.token_bytes["fp16"]


def config(kind: str, **changes: Any) -> dict[str, Any]:
    small = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "head_dim": 8}
    return CONFIG_MAPPING[kind](**{**small, "num_key_value_heads": 2, "num_hidden_layers": 3, **changes}).to_dict()


def test_windows_by_layer() -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert outline("m", config("gemma3_text", layer_types=kinds, sliding_window=16)).windows == (16, None, 16)
    assert outline("m", config("mistral", sliding_window=20)).windows == (20,) * 3
    assert outline("m", config("llama")).windows == (None,) * 3


def test_experts() -> None:
    settings = config("mixtral", num_local_experts=4, num_experts_per_tok=2)
    described = outline("m", settings)
    assert described.experts is not None
    # Gate, up and down of each expert in each layer.
    assert described.experts.parameters == 3 * 4 * 3 * 32 * 48
    assert (described.experts.count, described.experts.used) == (4, 2)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING["mixtral"](**settings))
    assert described.active == model.num_parameters() - 64 * 32 - described.experts.parameters / 2


def test_kimi_k2_is_the_family_that_its_code_computes() -> None:
    settings = config("deepseek_v3")
    described = outline("m", {**settings, "model_type": "kimi_k2"})
    assert described == outline("m", settings)
    # Of 512 numbers and a rotated key of 64, in each of three layers, in 16 bits.
    assert described.token_kv_bytes(2) == 3 * (512 + 64) * 2


def test_a_quantized_checkpoint_has_the_parameters_of_its_model() -> None:
    plain = config("llama")
    quantized = {**plain, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    assert outline("m", quantized).parameters == outline("m", plain).parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("llama-3-8b", 8_030_261_248), ("llama-3-70b", 70_553_706_496), ("mistral-7b-v0.1", 7_241_732_096)],
)
def test_published_models_have_the_published_parameters(name: str, parameters: int) -> None:
    assert outline(name, published_models()[name]).parameters == parameters


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "names no `model_type`"),
        ({"model_type": "abacus"}, "knows no `abacus`"),
        ({"model_type": 7}, "knows no"),
        ({"model_type": "mamba"}, "cannot be loaded"),
        ({"model_type": "deepseek_v32"}, "index"),
        ({"model_type": "llama", "num_hidden_layers": 10**9}, "layers"),
        ({"model_type": "llama", "num_hidden_layers": 0}, "num_hidden_layers"),
        ({"model_type": "llama", "hidden_size": -32}, "hidden_size"),
        ({"model_type": "llama", "hidden_size": "wide"}, "cannot be loaded"),
        ({"model_type": "llama", "vocab_size": None}, "cannot be loaded"),
    ],
)
def test_what_is_no_model_is_said(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        outline("m", settings)

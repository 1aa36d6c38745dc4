"""A model's description computes what its modules do, or there is none."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, PreTrainedModel

from qpdsl.executor.engine.memory.kv_cache import KVCache, KVLayout
from qpdsl.executor.engine.model.decoder import Decoder
from qpdsl.executor.engine.model.families import describe
from qpdsl.executor.engine.model.heads import LogitHead
from qpdsl.executor.engine.model.module_stack import AttentionCall, ModuleStack
from qpdsl.executor.kernels.data.paged_batch import Heads
from qpdsl.executor.kernels.data.weights import FloatWeight, GroupedWeight
from qpdsl.executor.kernels.linear import StoredEmbedding, StoredLinear
from tests.support.executor.described import hidden_states
from tests.support.executor.families import Family, tiny

# Longer than the window of the tiny models, and than the tokens of the probe.
TOKENS = torch.arange(90) * 7 % 101
WINDOWED = {"layer_types": ["sliding_attention", "full_attention"] * 2, "use_sliding_window": True}


def rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **fields}


LINEAR = rope("linear", factor=4.0)
YARN = rope("yarn", factor=16.0, original_max_position_embeddings=32)
LLAMA3 = rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
# What a tiny model's configuration changes, besides having four layers. Its name begins with the model type.
CASES: dict[str, dict[str, Any]] = {
    "cwm": {"layer_types": ["full_attention", "sliding_attention"] * 2},
    "ernie4_5": {},
    "ernie4_5 with biases": {"use_bias": True},
    "exaone4": {"layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]},
    "exaone4 without windows": {"sliding_window": None, "layer_types": ["full_attention"] * 4},
    "gemma": {},
    "gemma2": {"attn_logit_softcapping": 0.5},
    "gemma2 without its soft cap": {"attn_logit_softcapping": None},
    "gemma3": {},
    "gemma3_text": {},
    "gemma3_text with stretched positions": {
        "rope_parameters": {"sliding_attention": rope("default"), "full_attention": LINEAR}
    },
    "glm": {},
    "glm4": {"attention_bias": True},
    "granite": {"residual_multiplier": 0.3, "embedding_multiplier": 5.0, "attention_multiplier": 0.2},
    "helium": {},
    "hyperclovax": {"use_post_norm": True, "residual_multiplier": 0.3, "embedding_multiplier": 5.0},
    "hyperclovax without norms after": {"use_post_norm": False},
    "internlm3": {},
    "iquestcoder": {},
    "llama": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "llama with one KV head": {"num_key_value_heads": 1},
    "llama with a KV head for each": {"num_key_value_heads": 4},
    "llama with stretched positions": {"rope_parameters": LINEAR},
    "llama with the positions of Llama 3": {"rope_parameters": LLAMA3},
    "llama with yarn": {"rope_parameters": YARN},
    "ministral": {"head_dim": 12},
    "mistral": {},
    "olmo2": {},
    "olmo3": {},
    "olmo3 with yarn": {"rope_parameters": {"sliding_attention": rope("default"), "full_attention": YARN}},
    "phi3": {},
    "phi3 that turns a part": {"rope_parameters": rope("default", partial_rotary_factor=0.5)},
    "qwen2": WINDOWED,
    "qwen3": WINDOWED,
    "seed_oss": {},
    "smollm3": {**WINDOWED, "no_rope_layers": [1, 1, 0, 1]},
    "vaultgemma": {"attn_logit_softcapping": 0.5},
    "vaultgemma without its soft cap": {"attn_logit_softcapping": None},
}


def model_of(case: str) -> PreTrainedModel:
    name = case.partition(" ")[0]
    if name not in CONFIG_MAPPING:
        pytest.skip("this release of transformers does not have the family")
    changes = dict(CASES[case])
    if name == "gemma3":
        changes = {"text_config": {"num_hidden_layers": 4}}
    return tiny(Family(name, {"num_hidden_layers": 4, **changes}))


class Recorded:
    """One text, whose attention need not be right for its calls to be seen."""

    tokens = TOKENS
    positions = torch.arange(len(TOKENS))

    def attend(self, cache: object, heads: Heads, *others: object) -> torch.Tensor:
        return heads.query


@torch.inference_mode()
def attention_calls(model: PreTrainedModel) -> tuple[torch.nn.Module, list[AttentionCall]]:
    """The model without its head, whose attention is then replaced, and the calls of attention in a forward."""
    config = model.config.get_text_config()
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    layout = KVLayout.equal(config.num_hidden_layers, 16, kv_heads, dim, torch.float32)
    stack = ModuleStack(model, layout.layers)
    return stack.inner, stack.probe(Recorded(), KVCache(torch.zeros(layout.page_bytes, dtype=torch.uint8), layout, 0))[
        1
    ]


def described(model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> Decoder:
    """The description of a copy, whose parameters are in `dtype`. Raises LookupError."""
    copy = deepcopy(model)
    inner, calls = attention_calls(copy)
    for parameter in inner.parameters():
        parameter.data = parameter.data.to(dtype)
    return describe(inner, copy.config.get_text_config(), calls)


@torch.inference_mode()
def distance(decoder: Decoder, model: PreTrainedModel) -> float:
    """How far the description's logits lie from those of the model's own forward, as a share of the largest."""
    own = model(input_ids=TOKENS[None]).logits[0]
    embeddings = model.get_input_embeddings().weight[TOKENS]
    logits = LogitHead(model).dense(hidden_states(decoder, embeddings))
    return float((logits - own).abs().max() / own.abs().max())


@pytest.mark.parametrize("case", CASES)
def test_computes_what_the_modules_do(case: str) -> None:
    model = model_of(case)
    assert distance(described(model), model) < 1e-4


@pytest.mark.parametrize("case", CASES)
def test_keeps_the_type_of_the_weights(case: str) -> None:
    model = model_of(case)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    embedding = model.get_input_embeddings()
    if hasattr(embedding, "embed_scale"):
        # Gemma rounds the scale to the type of the weights, which this model does not have.
        embedding.embed_scale = embedding.embed_scale.bfloat16().float()
    decoder = described(model, torch.bfloat16)
    layer = decoder.layer(0)
    for product in (layer.attention.joined, layer.attention.out, layer.mlp.widen, layer.mlp.down):
        assert product.weight.kind == "bfloat16"
    assert distance(decoder, model) < 1e-4


def grouped(outputs: int, inputs: int, bits: int, group: int, block: int, generator: torch.Generator) -> GroupedWeight:
    """Random numbers in blocks of several groups; 4-bit ones have offsets."""

    def numbers(low: int, high: int, columns: int) -> torch.Tensor:
        return torch.randint(low, high, (outputs, columns), generator=generator, dtype=torch.int8)

    codes = numbers(0, 16, inputs) if bits == 4 else numbers(-32, 32, inputs)
    scales = (torch.rand(outputs, inputs // block, generator=generator) + 0.5) / (150 if bits == 4 else 600)
    groups = inputs // group
    if bits == 8:
        return GroupedWeight(codes, bits, scales, None, group, numbers(5, 20, groups))
    return GroupedWeight(codes, bits, scales, -8 * scales, group, numbers(5, 10, groups), numbers(5, 10, groups))


@pytest.mark.parametrize("case", ["llama", "qwen2", "phi3", "gemma3_text"])
def test_reads_quantized_layers(case: str) -> None:
    """As a K-quant file has them: values with more bits than queries and keys, blocks and groups wider than a head."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 16, "num_attention_heads": 8}
    model = tiny(Family(case, {"num_hidden_layers": 2, **sizes}))
    generator = torch.Generator().manual_seed(0)
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, child in list(part.named_children()):
                if isinstance(child, torch.nn.Linear):
                    more = name in ("v_proj", "down_proj")
                    bits, group = (8, 16) if more else (4, 32)
                    weight = grouped(child.out_features, child.in_features, bits, group, 64, generator)
                    setattr(part, name, StoredLinear(weight, child.bias))
    embedding = model.model.embed_tokens
    scale = getattr(embedding, "scalar_embed_scale", 1.0)
    decoder = described(model)
    assert isinstance(decoder.layer(0).attention.joined.weight, GroupedWeight)
    assert distance(decoder, model) < 1e-4
    model.model.embed_tokens = StoredEmbedding(FloatWeight(embedding.weight.detach()), scale)
    assert described(model).embedding_scale == pytest.approx(scale)


def test_layers_without_rotation_and_windows_are_told_apart() -> None:
    attention = [described(model_of("smollm3")).layer(index).attention for index in range(4)]
    assert [part.rotation for part in attention] == [0, 0, None, 0]
    assert [part.window for part in attention] == [24, None, 24, None]
    gemma = described(model_of("gemma3_text"))
    kinds = {(gemma.layer(index).attention.rotation, gemma.layer(index).attention.window) for index in range(4)}
    assert {window for _, window in kinds} == {None, 24} and len(kinds) == len(gemma.rotations(1)) == 2


def test_layers_are_emptied_once_their_weights_are_elsewhere() -> None:
    model = model_of("llama")
    inner, calls = attention_calls(model)
    inner.layers[1].mlp.up_proj = StoredLinear(FloatWeight(inner.layers[1].mlp.up_proj.weight.detach()), None)
    decoder = describe(inner, model.config, calls)
    decoder.release(1)
    left = [part for part in inner.layers[1].modules() if isinstance(part, torch.nn.Linear)]
    assert len(left) == 6 and sum(part.weight.numel() for part in left) == 0
    assert inner.layers[1].mlp.up_proj.stored.dequantized().numel() == 0
    assert inner.layers[0].mlp.up_proj.weight.numel() > 0


def test_the_rotations_keep_no_layers_in_memory() -> None:
    model = model_of("llama")
    inner, calls = attention_calls(model)
    rotations, layer = describe(inner, model.config, calls).rotations, weakref.ref(inner.layers[0])
    del model, inner, calls
    gc.collect()
    assert layer() is None and len(rotations(5)[0]) == 5


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("llama", {"rope_parameters": rope("dynamic", factor=4.0)}, "position encoding dynamic"),
        ("llama", {"hidden_act": "gelu"}, "GELUActivation"),
        ("gpt_neox", {}, "gpt_neox"),
    ],
)
def test_what_the_description_does_not_cover_has_none(name: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(LookupError, match=reason):
        described(tiny(Family(name, changes)))


class Doubled(torch.nn.Linear):
    """A linear layer that computes something else."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(hidden)


@pytest.mark.parametrize("alteration", ["subclass", "part", "parameter", "norm", "narrow", "epsilon", "mixed"])
def test_a_model_that_only_looks_like_its_family_has_none(alteration: str) -> None:
    model = model_of("llama")
    layer = model.model.layers[1]
    match alteration:
        case "subclass":
            layer.self_attn.k_proj = Doubled(48, 24, bias=False)
        case "part":
            layer.self_attn.q_norm_of_another_kind = torch.nn.Linear(2, 2)
        case "parameter":
            layer.mlp.gain = torch.nn.Parameter(torch.ones(1))
        case "norm":
            layer.input_layernorm = torch.nn.LayerNorm(48)
        case "narrow":
            layer.mlp.gate_proj, layer.mlp.up_proj = (torch.nn.Linear(48, 80, bias=False) for _ in range(2))
            layer.mlp.down_proj = torch.nn.Linear(80, 48, bias=False)
        case "epsilon":
            layer.input_layernorm.variance_epsilon *= 10
        case "mixed":
            layer.mlp.up_proj = StoredLinear(grouped(96, 48, 8, 16, 48, torch.Generator()), None)
    with pytest.raises(LookupError):
        described(model)


@pytest.mark.parametrize("name", ["input_layernorm", "mlp"])
def test_a_layer_without_a_part_of_its_family_has_none(name: str) -> None:
    model = model_of("llama")
    inner, calls = attention_calls(model)
    delattr(inner.layers[1], name)
    with pytest.raises(LookupError):
        describe(inner, model.config, calls)
    with pytest.raises(LookupError, match="self_attn"):
        describe(inner, model.config, calls[1:])

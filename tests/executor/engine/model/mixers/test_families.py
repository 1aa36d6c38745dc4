"""Models with mixers against their own whole forwards, and in any pieces with equal bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qpdsl.executor.engine.model.module_stack import inner_model
from qpdsl.executor.engine.model.rowwise import RowwiseModules, names
from qpdsl.executor.kernels.llvm import delta, gates, recurrence
from tests.support.executor.mixed_texts import MixedTexts, tiny_model

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
CONV = ["conv", "full_attention"] * 2
LINEAR = ["linear_attention", "full_attention"] * 2
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "head_dim": 12,
    "layer_types": LINEAR,
}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 32}
KIMI = {
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 2,
    "num_local_experts": 4,
    "linear_num_heads": 4,
    "linear_head_dim": 12,
    "layer_types": LINEAR,
}
BAILING = {
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "qk_nope_head_dim": 12,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_local_experts": 4,
    "linear_num_heads": 4,
    "linear_head_dim": 12,
    "head_dim": 12,
    "layer_types": LINEAR,
}
SCAN = {
    "mamba_n_heads": 4,
    "mamba_d_head": 24,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_chunk_size": 16,
}
MAMBA2 = {"num_hidden_layers": 2, "num_heads": 4, "head_dim": 24, "state_size": 8, "n_groups": 2, "chunk_size": 16}
GRANITE = {**SCAN, "layer_types": LINEAR, "num_local_experts": 4, "num_experts_per_tok": 2}
FALCON = {**SCAN, "num_hidden_layers": 2, "head_dim": 12, "mamba_d_ssm": 96}
NEMOTRON = {
    "mamba_num_heads": 4,
    "mamba_head_dim": 24,
    "n_groups": 2,
    "ssm_state_size": 8,
    "chunk_size": 16,
    "layers_block_type": ["mamba", "attention", "mamba", "attention", "mlp", "moe"],
    "num_hidden_layers": 6,
    "head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
}
ZAMBA2 = {
    "layers_block_type": ["linear_attention", "hybrid"] * 2,
    "num_key_value_heads": 4,
    "n_mamba_heads": 4,
    "mamba_d_state": 8,
    "mamba_ngroups": 2,
    "chunk_size": 16,
    "num_mem_blocks": 1,
}
ZAMBA = {
    "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
    "num_hidden_layers": 3,
    "mamba_dt_rank": 8,
    "num_key_value_heads": 4,
    "attention_head_dim": 24,
    "n_mamba_heads": 2,
    "mamba_d_state": 8,
}
JAMBA = {
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "mamba_d_state": 8,
    "mamba_dt_rank": 4,
}
MAMBA = {"num_hidden_layers": 2, "state_size": 8, "time_step_rank": 4}
GEMMA = {"num_hidden_layers": 3, "block_types": ["recurrent", "recurrent", "attention"], "lru_width": 48}
MINIMAX = {"layer_types": LINEAR, "head_dim": 12, "num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 16}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("lfm2", {"layer_types": CONV}),
    "lfm2 with biases": ("lfm2", {"layer_types": CONV, "conv_bias": True, "conv_L_cache": 4}),
    "lfm3": ("lfm3", {"layer_types": CONV}),
    "lfm2_moe": ("lfm2_moe", {**EXPERTS, "layer_types": CONV, "num_dense_layers": 2}),
    "qwen3_5_text": ("qwen3_5_text", DELTA),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", {**SHARED, **DELTA}),
    "qwen3_next": ("qwen3_next", {**SHARED, **DELTA}),
    "olmo_hybrid": ("olmo_hybrid", DELTA),
    "olmo_hybrid with eigenvalues above 0 only": ("olmo_hybrid", {**DELTA, "linear_allow_neg_eigval": False}),
    "kimi_linear": ("kimi_linear", KIMI),
    "bailing_hybrid": ("bailing_hybrid", BAILING),
    "bailing_hybrid without a bound": ("bailing_hybrid", {**BAILING, "kda_safe_gate": False}),
    "mamba2": ("mamba2", MAMBA2),
    "mamba2 with clamped steps": ("mamba2", {**MAMBA2, "time_step_limit": (0.01, 0.02)}),
    "bamba": ("bamba", {**SCAN, "attn_layer_indices": [1, 3]}),
    "granitemoehybrid": ("granitemoehybrid", {**GRANITE, "shared_intermediate_size": 32}),
    "falcon_h1": ("falcon_h1", FALCON),
    "falcon_h1 with a norm": ("falcon_h1", {**FALCON, "mamba_rms_norm": True}),
    "falcon_h1 with a norm before the gate": (
        "falcon_h1",
        {**FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": True},
    ),
    "nemotron_h": ("nemotron_h", NEMOTRON),
    "zamba2": ("zamba2", ZAMBA2),
    "zamba": ("zamba", ZAMBA),
    "jamba": ("jamba", JAMBA),
    "mamba": ("mamba", MAMBA),
    "falcon_mamba": ("falcon_mamba", MAMBA),
    "recurrent_gemma": ("recurrent_gemma", {**GEMMA, "attention_window_size": 24}),
    "minimax": ("minimax", MINIMAX),
}
# One of each kind of layer.
SEVERAL = ("lfm2", "qwen3_5_text", "kimi_linear", "bamba", "jamba", "recurrent_gemma", "minimax")
TOKENS = (torch.arange(42) * 7 + 3) % 101
# The same numbers in another order.
OTHER = TOKENS.flip(0)[:19]


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_hidden_states_are_the_models_own_in_any_pieces(name: str) -> None:
    kind, changes = FAMILIES[name]
    model = tiny_model(kind, **changes)
    own = inner_model(model)(input_ids=TOKENS[None], use_cache=False)[0][0]
    texts = MixedTexts(model)
    rows = RowwiseModules(texts.inner, lambda: texts.whole(TOKENS[:5]))
    assert names(rows.findings) == []
    whole = texts.whole(TOKENS)
    assert (whole - own).abs().max() <= 1e-3 * own.abs().max()
    for sizes in ([1] * 42, [7] * 6, [25, 11, 6]):
        assert torch.equal(texts.in_pieces(TOKENS, sizes), whole)
    alone = texts.whole(OTHER, text=1)
    # Beside one that goes on, one that begins anew and one of a single token.
    texts.whole(TOKENS[:30])
    beside = texts.step([(2, TOKENS[:1]), (0, TOKENS[30:]), (1, OTHER)], [0, 30, 0])
    for part, expected in zip(beside, (whole[:1], whole[30:], alone), strict=True):
        assert torch.equal(part, expected)
    rows.undo()
    model.config._attn_implementation = "eager"
    # Without a step modules do as they came.
    assert torch.equal(inner_model(model)(input_ids=TOKENS[None], use_cache=False)[0][0], own)
    texts.mixers.undo()
    assert torch.equal(inner_model(model)(input_ids=TOKENS[None], use_cache=False)[0][0], own)


@pytest.mark.parametrize("name", SEVERAL)
def test_they_are_so_without_a_compiler(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for code in (delta, recurrence, gates):
        monkeypatch.setattr(code, "vector_width", lambda: 0)
    test_hidden_states_are_the_models_own_in_any_pieces(name)


@torch.no_grad()
@pytest.mark.parametrize("name", SEVERAL)
def test_in_bfloat16_it_is_as_near_to_float32_as_the_models_own(name: str) -> None:
    kind, changes = FAMILIES[name]
    model = tiny_model(kind, torch.bfloat16, **changes)
    own = inner_model(model)(input_ids=TOKENS[None], use_cache=False)[0][0].float()
    texts = MixedTexts(model)
    kept = {part.name: part.dtype for parts in texts.layout.layers for part in parts}
    assert kept.pop("conv", torch.bfloat16) is torch.bfloat16
    assert {*kept.values()} <= {torch.float32}
    mixed = texts.whole(TOKENS).float()
    texts.mixers.undo()
    model.config._attn_implementation = "eager"
    wide = inner_model(model.float())(input_ids=TOKENS[None], use_cache=False)[0][0]
    errors = [(hidden - wide).square().mean().sqrt() for hidden in (mixed, own)]
    assert errors[0] <= 1.2 * errors[1]

"""The configurations of models in GGUF files, in transformers' terms.

Some settings are in llama.cpp's code and not in the file (`src/models/` in its repository, one file a family): whether
the weights of chosen experts are made to sum to 1, Llama 4's chunks, MiniCPM3's multipliers. Which layers attend is
told by their tensors, as not every converter has written it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from qpdsl.executor.checkpoint.gguf_settings import ROPE_FACTORS, Settings, numbers, rope

Config = dict[str, Any]
# How llama.cpp writes that experts are chosen by sigmoids.
_SIGMOID = 2


def decoder(settings: Settings, config: Config, *, part: bool = False, factors: bool = True) -> None:
    """What most families have: heads, an MLP, rotary positions; `part` and `factors` as for `rope`."""
    heads = settings.whole("attention.head_count")
    head_dim = settings.whole("attention.key_length", max(1, config["hidden_size"] // heads))
    settings.expect("attention.value_length", head_dim)
    found = (f"blk.{layer}.attn_k.weight" for layer in range(config["num_hidden_layers"]))
    keys = next((settings.shape(name)[0] // head_dim for name in found if settings.has(name)), heads)
    config |= {
        "intermediate_size": settings.alike("feed_forward_length", 1),
        "num_attention_heads": heads,
        "num_key_value_heads": settings.alike("attention.head_count_kv", keys),
        "head_dim": head_dim,
        "max_position_embeddings": settings.whole("context_length"),
        "rope_parameters": rope(settings, head_dim, part=part, factors=factors),
    }


def part_rotary(settings: Settings, config: Config) -> None:
    decoder(settings, config, part=True)


def bare(settings: Settings, config: Config) -> None:
    """Families without attention and MLP."""
    for name in ("feed_forward_length", "attention.head_count"):
        settings.expect(name, 0)
    settings.take("context_length")


def plain(settings: Settings, config: Config) -> None:
    """For families whose configuration has nothing of its own."""


def with_biases(settings: Settings, config: Config) -> None:
    """For families whose configuration says which layers have biases."""
    config["attention_bias"] = settings.has("blk.0.attn_output.bias")
    config["mlp_bias"] = settings.has("blk.0.ffn_down.bias")


def query_biases(settings: Settings, config: Config) -> None:
    config["attention_bias"] = settings.has("blk.0.attn_q.bias")


def seed_oss(settings: Settings, config: Config) -> None:
    config["attention_bias"] = settings.has("blk.0.attn_q.bias")
    config["attention_out_bias"] = settings.has("blk.0.attn_output.bias")
    config["mlp_bias"] = settings.has("blk.0.ffn_down.bias")


def phi3(settings: Settings, config: Config) -> None:
    config["sliding_window"] = settings.take("attention.sliding_window", 0) or None
    original = config["rope_parameters"].get("original_max_position_embeddings", config["max_position_embeddings"])
    config["original_max_position_embeddings"] = original


def llama(settings: Settings, config: Config) -> None:
    """Llama, or Mixtral where there are experts."""
    with_biases(settings, config)
    if settings.has("blk.0.ffn_gate_inp.weight"):
        config |= {"model_type": "mixtral", "num_local_experts": settings.whole("expert_count")}
        config["num_experts_per_tok"] = settings.whole("expert_used_count")


def mistral3(settings: Settings, config: Config) -> None:
    """Ministral 3, or Mistral where queries are not scaled by their positions."""
    beta = settings.take("attention.temperature_scale")
    scale = settings.take("rope.scaling.yarn_log_multiplier")
    if beta is None:
        config |= {"model_type": "mistral", "sliding_window": None}
        return
    config["rope_parameters"]["llama_4_scaling_beta"] = round(beta, 6)
    if scale is not None:
        # The converter takes it for both.
        config["rope_parameters"] |= {"mscale": scale, "mscale_all_dim": scale}


def granite(settings: Settings, config: Config) -> None:
    config["attention_bias"] = settings.has("blk.0.attn_output.bias")
    config["mlp_bias"] = settings.has("blk.0.ffn_down.bias")
    _granite_scales(settings, config)
    # Without rotary positions it is another model (`granite` in llama.cpp reads this as a switch).
    settings.expect("rope.scaling.finetuned", True)


def _granite_scales(settings: Settings, config: Config) -> None:
    config["logits_scaling"] = settings.real("logit_scale")
    config["embedding_multiplier"] = settings.real("embedding_scale", 1.0)
    config["residual_multiplier"] = settings.real("residual_scale", 1.0)
    config["attention_multiplier"] = settings.real("attention.scale", config["head_dim"] ** -0.5)


def granite_moe(settings: Settings, config: Config) -> None:
    _granite_scales(settings, config)
    settings.expect("rope.scaling.finetuned", True)
    config["num_local_experts"] = settings.whole("expert_count")
    config["num_experts_per_tok"] = settings.whole("expert_used_count")
    settings.take("expert_shared_feed_forward_length")
    if settings.has("blk.0.ffn_gate_shexp.weight"):
        config["model_type"] = "granitemoeshared"
        config["shared_intermediate_size"] = settings.shape("blk.0.ffn_gate_shexp.weight")[0]


def granite_hybrid(settings: Settings, config: Config) -> None:
    _granite_scales(settings, config)
    rotates = settings.take("rope.scaling.finetuned", False)
    config["position_embedding_type"] = "rope" if rotates else "nope"
    config["layer_types"] = _kinds(settings, config, "linear_attention")
    config["num_local_experts"] = settings.take("expert_count", 0)
    config["num_experts_per_tok"] = settings.take("expert_used_count", 0)
    settings.take("expert_shared_feed_forward_length")
    shared = "blk.0.ffn_gate_shexp.weight" if config["num_local_experts"] else "blk.0.ffn_gate.weight"
    config["shared_intermediate_size"] = settings.shape(shared)[0] if settings.has(shared) else 0
    _mamba2(settings, config, "mamba_n_heads", "mamba_d_head")
    names = {"n_groups": "mamba_n_groups", "state_size": "mamba_d_state", "conv_kernel": "mamba_d_conv"}
    config |= {own: config.pop(name) for name, own in names.items()}
    config |= {"mamba_expand": config.pop("inner") // config["hidden_size"], "mamba_proj_bias": False}


def _mamba2(settings: Settings, config: Config, heads: str, head_dim: str) -> None:
    """Of Mamba-2 layers, with the names of two settings; `inner` is no setting of a configuration."""
    count, inner = settings.whole("ssm.time_step_rank"), settings.whole("ssm.inner_size")
    config |= {
        heads: count,
        head_dim: inner // count,
        "inner": inner,
        "n_groups": settings.whole("ssm.group_count"),
        "state_size": settings.whole("ssm.state_size"),
        "conv_kernel": settings.whole("ssm.conv_kernel"),
    }


def _kinds(settings: Settings, config: Mapping[str, Any], other: str, attends: str = "full_attention") -> list[str]:
    """For each layer whether it attends or is the `other` kind."""
    layers = range(config["num_hidden_layers"])
    return [attends if settings.has(f"blk.{layer}.attn_q.weight") else other for layer in layers]


def falcon_h1(settings: Settings, config: Config) -> None:
    _mamba2(settings, config, "mamba_n_heads", "mamba_d_head")
    names = {"inner": "mamba_d_ssm", "n_groups": "mamba_n_groups", "state_size": "mamba_d_state"}
    config |= {own: config.pop(name) for name, own in names.items()}
    config["mamba_d_conv"] = config.pop("conv_kernel")
    config["mamba_rms_norm"] = settings.has("blk.0.ssm_norm.weight")
    # llama.cpp knows no other order.
    config["mamba_norm_before_gate"] = False
    config["attention_bias"] = settings.has("blk.0.attn_output.bias")
    config["mlp_bias"] = settings.has("blk.0.ffn_down.bias")
    places = ("embedding", "lm_head", "key", "attention_in", "attention_out", "ssm_in", "ssm_out")
    config |= {f"{place}_multiplier": 1.0 for place in places}
    config |= {"mlp_multipliers": [1.0] * 2, "ssm_multipliers": [1.0] * 5}


def nemotron_h(settings: Settings, config: Config) -> None:
    del config["rope_parameters"]
    settings.take("rope.scaling.finetuned")
    _mamba2(settings, config, "mamba_num_heads", "mamba_head_dim")
    config["ssm_state_size"] = config.pop("state_size")
    del config["inner"]
    config["layer_norm_epsilon"] = config.pop("rms_norm_eps")
    signs = {"ssm_in": "mamba", "attn_q": "attention", "ffn_up_exps": "moe", "ffn_up": "mlp"}
    kinds = [
        next((kind for name, kind in signs.items() if settings.has(f"blk.{layer}.{name}.weight")), "none")
        for layer in range(config["num_hidden_layers"])
    ]
    if "none" in kinds:
        raise settings.error(f"has a layer of no known kind, {kinds.index('none')}")
    config["layers_block_type"] = kinds
    if "mlp" in kinds:
        config["intermediate_size"] = settings.shape(f"blk.{kinds.index('mlp')}.ffn_up.weight")[0]
    if "moe" in kinds:
        layer = f"blk.{kinds.index('moe')}"
        config["moe_intermediate_size"] = settings.shape(f"{layer}.ffn_up_exps.weight")[1]
        config["moe_shared_expert_intermediate_size"] = settings.shape(f"{layer}.ffn_up_shexp.weight")[0]
        config["moe_latent_size"] = settings.take("moe_latent_size") or settings.take("expert_latent_length")
        config["n_shared_experts"] = settings.take("expert_shared_count", 1)
        _routed(settings, config)
    else:
        for name in ("expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count"):
            settings.take(name)
        for name in ("expert_shared_count", "expert_weights_norm", "expert_weights_scale"):
            settings.take(name)
    for name in ("expert_feed_forward_length", "expert_shared_feed_forward_length"):
        settings.take(name)


def _routed(settings: Settings, config: Config) -> None:
    """How experts are chosen, in DeepSeek's terms."""
    config |= {
        "n_routed_experts": settings.whole("expert_count"),
        "num_experts_per_tok": settings.whole("expert_used_count"),
        "routed_scaling_factor": settings.real("expert_weights_scale", 1.0),
        "norm_topk_prob": bool(settings.take("expert_weights_norm", False)),
        "n_group": settings.take("expert_group_count", 1) or 1,
        "topk_group": settings.take("expert_group_used_count", 1) or 1,
    }


def qwen_moe(settings: Settings, config: Config) -> None:
    config["norm_topk_prob"] = config["model_type"] != "qwen2_moe"
    _qwen_experts(settings, config)


def _qwen_experts(settings: Settings, config: Config) -> None:
    config |= {
        "num_experts": settings.whole("expert_count"),
        "num_experts_per_tok": settings.whole("expert_used_count"),
        "moe_intermediate_size": settings.shape("blk.0.ffn_down_exps.weight")[-1],
    }
    for name in ("expert_feed_forward_length", "expert_shared_feed_forward_length"):
        settings.take(name)
    if settings.has(shared := "blk.0.ffn_up_shexp.weight"):
        config["shared_expert_intermediate_size"] = settings.shape(shared)[0]


def olmoe(settings: Settings, config: Config) -> None:
    config["num_experts"] = settings.whole("expert_count")
    config["num_experts_per_tok"] = settings.whole("expert_used_count")
    settings.take("expert_feed_forward_length")
    config["norm_topk_prob"] = False


def qwen_vl(settings: Settings, config: Config) -> None:
    """The language model of Qwen's models that see. For text, all three of its positions are the same."""
    settings.take("rope.dimension_sections")
    settings.take("n_deepstack_layers")
    if config["model_type"] == "qwen3_moe":
        qwen_moe(settings, config)


def delta(settings: Settings, config: Config) -> None:
    """Qwen3-Next and Qwen3.5."""
    settings.take("rope.dimension_sections")
    for name in ("full_attention_interval", "attention.recurrent_layers"):
        settings.take(name)
    values = settings.whole("ssm.time_step_rank")
    config |= {
        "layer_types": _kinds(settings, config, "linear_attention"),
        "linear_conv_kernel_dim": settings.whole("ssm.conv_kernel"),
        "linear_key_head_dim": settings.whole("ssm.state_size"),
        "linear_num_key_heads": settings.whole("ssm.group_count"),
        "linear_num_value_heads": values,
        "linear_value_head_dim": settings.whole("ssm.inner_size") // values,
    }
    if "moe" in config["model_type"] or config["model_type"] == "qwen3_next":
        _qwen_experts(settings, config)
        config["norm_topk_prob"] = True


def gpt_oss(settings: Settings, config: Config) -> None:
    config["intermediate_size"] = settings.whole("expert_feed_forward_length", config["intermediate_size"])
    config["num_local_experts"] = settings.whole("expert_count")
    config["num_experts_per_tok"] = settings.whole("expert_used_count")
    config["sliding_window"] = settings.whole("attention.sliding_window")
    layers = config["num_hidden_layers"]
    config["layer_types"] = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
    # The bounds of its yarn are not rounded.
    config["rope_parameters"]["truncate"] = False


def deepseek(settings: Settings, config: Config) -> None:
    """DeepSeek V2 and V3, Kimi-K2, GLM-4.7-Flash; where experts are chosen by sigmoids it is V3's code."""
    ropes = settings.whole("rope.dimension_count")
    rank = settings.whole("attention.kv_lora_rank")
    width, values = settings.whole("attention.key_length"), settings.whole("attention.value_length")
    # Newer files have here what latent attention reads, and its heads by other names.
    width = settings.whole("attention.key_length_mla", width)
    values = settings.whole("attention.value_length_mla", values)
    heads = settings.whole("attention.head_count")
    settings.expect("attention.head_count_kv", 1, heads)
    config |= {
        "intermediate_size": settings.whole("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": settings.whole("context_length"),
        "q_lora_rank": settings.take("attention.q_lora_rank") if settings.has("blk.0.attn_q_a.weight") else None,
        "kv_lora_rank": rank,
        "qk_rope_head_dim": ropes,
        "qk_nope_head_dim": width - ropes,
        "v_head_dim": values,
        "attention_bias": False,
        "first_k_dense_replace": _dense_layers(settings, config),
        "moe_intermediate_size": settings.whole("expert_feed_forward_length"),
        "n_shared_experts": settings.take("expert_shared_count", 0),
    }
    settings.take("attention.q_lora_rank")
    _routed(settings, config)
    last = f"blk.{config['num_hidden_layers'] - 1}"
    by_sigmoid = settings.has(f"{last}.exp_probs_b.bias")
    settings.expect("expert_gating_func", *((_SIGMOID, 0) if by_sigmoid else (1, 0)))
    config["model_type"] = "deepseek_v3" if by_sigmoid else "deepseek_v2"
    config["topk_method"] = "noaux_tc" if by_sigmoid else "group_limited_greedy" if config["n_group"] > 1 else "greedy"
    # What the converter writes is a tenth of `mscale_all_dim`; it takes `mscale` for the same.
    scale = settings.take("rope.scaling.yarn_log_multiplier", 0.0) * 10
    found = rope(settings, ropes)
    if found["rope_type"] == "yarn":
        found |= {"mscale": round(scale, 6), "mscale_all_dim": round(scale, 6)} if scale else {}
    config["rope_parameters"] = found


def _dense_layers(settings: Settings, config: Mapping[str, Any]) -> int:
    """How many layers come before those with experts. GLM-4.7-Flash's files do not say it right."""
    settings.take("leading_dense_block_count")
    layers = range(config["num_hidden_layers"])
    return next((layer for layer in layers if settings.has(f"blk.{layer}.ffn_gate_inp.weight")), len(layers))


def minicpm3(settings: Settings, config: Config) -> None:
    ropes = settings.whole("rope.dimension_count")
    heads = settings.whole("attention.head_count")
    settings.expect("attention.head_count_kv", heads)
    outputs = settings.shape("blk.0.attn_output.weight")[1]
    config |= {
        "intermediate_size": settings.whole("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": settings.whole("context_length"),
        "q_lora_rank": settings.whole("attention.q_lora_rank"),
        "kv_lora_rank": settings.whole("attention.kv_lora_rank"),
        "qk_rope_head_dim": ropes,
        "qk_nope_head_dim": settings.whole("attention.key_length") - ropes,
        "v_head_dim": settings.take("attention.value_length", outputs // heads),
        # These are in llama.cpp's code.
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
        "rope_parameters": rope(settings, ropes),
    }


def lfm2(settings: Settings, config: Config) -> None:
    config["norm_eps"] = config.pop("rms_norm_eps")
    config["layer_types"] = _kinds(settings, config, "conv")
    config["conv_L_cache"] = settings.whole("shortconv.l_cache")
    config["block_auto_adjust_ff_dim"] = False
    first = config["layer_types"].index("conv") if "conv" in config["layer_types"] else 0
    config["conv_bias"] = settings.has(f"blk.{first}.shortconv.conv.bias")
    if config["model_type"] == "lfm2_moe":
        config |= {
            "num_experts": settings.whole("expert_count"),
            "num_experts_per_tok": settings.whole("expert_used_count"),
            "moe_intermediate_size": settings.whole("expert_feed_forward_length"),
            "num_dense_layers": settings.take("leading_dense_block_count", 0),
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
            "use_expert_bias": True,
        }
        settings.expect("expert_gating_func", _SIGMOID)


def llama4(settings: Settings, config: Config) -> None:
    config["intermediate_size_mlp"] = config["intermediate_size"]
    config["intermediate_size"] = settings.whole("expert_feed_forward_length")
    config["interleave_moe_layer_step"] = settings.whole("interleave_moe_layer_step")
    config["num_local_experts"] = settings.whole("expert_count")
    config["num_experts_per_tok"] = settings.whole("expert_used_count")
    # These are in llama.cpp's code; the largest model has no norm of queries and keys.
    config["attention_chunk_size"], config["use_qk_norm"] = 8192, config["num_local_experts"] != 128
    settings.expect("attention.chunk_size", 8192)


def gemma2(settings: Settings, config: Config) -> None:
    config["sliding_window"] = settings.whole("attention.sliding_window", 4096)
    config["attn_logit_softcapping"] = settings.real("attn_logit_softcapping", 50.0)
    config["final_logit_softcapping"] = settings.real("final_logit_softcapping", 30.0)
    config["query_pre_attn_scalar"] = _gemma_scale(config, 46)


def gemma3(settings: Settings, config: Config) -> None:
    _local(settings, config, 6)
    config["final_logit_softcapping"] = settings.take("final_logit_softcapping")
    config["query_pre_attn_scalar"] = _gemma_scale(config, 62)
    settings.expect("rope.dimension_count_swa", config["head_dim"])


def _local(settings: Settings, config: Config, period: int | None) -> None:
    """Which layers attend within a window, and the position encoding of these.

    `period`: where the file has none of its own, each so-manieth layer is no such layer.
    """
    layers = config["num_hidden_layers"]
    window = settings.take("attention.sliding_window", 0)
    pattern = settings.take("attention.sliding_window_pattern", period)
    local = [(index + 1) % pattern != 0 for index in range(layers)] if isinstance(pattern, int) and pattern else pattern
    if not isinstance(local, list | tuple) or len(local) != layers:
        raise settings.error("says of other layers than its own which of them are local")
    config["layer_types"] = ["sliding_attention" if window and near else "full_attention" for near in local]
    config["sliding_window"] = window or config["max_position_embeddings"]
    theta = settings.real("rope.freq_base_swa", 10000.0)
    config["rope_parameters"] = {
        "full_attention": config["rope_parameters"],
        "sliding_attention": {"rope_type": "default", "rope_theta": theta},
    }


def _gemma_scale(config: Mapping[str, Any], layers_of_27b: int) -> int:
    """Attention is scaled by the root of this; the 27B models have a number of their own."""
    if config["num_hidden_layers"] == layers_of_27b:
        return int(config["hidden_size"]) // int(config["num_attention_heads"])
    return int(config["head_dim"])


def gemma3n(settings: Settings, config: Config) -> None:
    _local(settings, config, 5)
    _per_layer_inputs(settings, config)
    config["final_logit_softcapping"] = settings.real("final_logit_softcapping", 30.0)
    config["intermediate_size"] = [config["intermediate_size"]] * config["num_hidden_layers"]
    config["altup_active_idx"] = settings.take("altup.active_idx", 0)
    config["altup_num_inputs"] = settings.whole("altup.num_inputs", 4)
    config["laurel_rank"] = settings.shape("blk.0.laurel_l.weight")[0]
    scales = settings.take("activation_sparsity_scale", ())
    # The file has how many standard deviations are cut off, and transformers which share.
    shares = [round((1 + math.erf(scale / math.sqrt(2))) / 2, 6) for scale in scales]
    config["activation_sparsity_pattern"] = shares or [0.0] * config["num_hidden_layers"]


def _per_layer_inputs(settings: Settings, config: Config) -> None:
    config["num_kv_shared_layers"] = settings.take("attention.shared_kv_layers", 0)
    config["hidden_size_per_layer_input"] = settings.take("embedding_length_per_layer_input", 0)
    if settings.has("per_layer_token_embd.weight"):
        config["vocab_size_per_layer_input"] = settings.shape("per_layer_token_embd.weight")[0]


def gemma4(settings: Settings, config: Config) -> None:
    _per_layer_inputs(settings, config)
    layers = range(config["num_hidden_layers"])
    heads, widths = settings.take("attention.head_count_kv"), settings.take("feed_forward_length")
    near, far = settings.whole("attention.key_length_swa"), settings.whole("attention.key_length")
    settings.expect("attention.value_length", far)
    settings.expect("attention.value_length_swa", near)
    settings.expect("rope.dimension_count_swa", near)
    config |= {
        "num_attention_heads": settings.whole("attention.head_count"),
        "head_dim": near,
        "global_head_dim": far,
        "max_position_embeddings": settings.whole("context_length"),
        "rope_parameters": rope(settings, far, factors=False),
        "final_logit_softcapping": settings.take("final_logit_softcapping"),
    }
    _local(settings, config, None)
    kinds = config["layer_types"]
    of_layers = heads if isinstance(heads, tuple) and len(heads) == len(layers) else (heads,) * len(layers)
    for kind, name in (("sliding_attention", "num_key_value_heads"), ("full_attention", "num_global_key_value_heads")):
        found = {count for count, own in zip(of_layers, kinds, strict=True) if own == kind}
        if len(found) > 1 or not all(isinstance(count, int) and count > 0 for count in found):
            raise settings.error(f"has `{heads}` for the setting `attention.head_count_kv`, which is not known")
        config[name] = found.pop() if found else None
    owners = range(len(layers) - config["num_kv_shared_layers"])
    config["attention_k_eq_v"] = any(
        kinds[layer] == "full_attention" and not settings.has(f"blk.{layer}.attn_v.weight") for layer in owners
    )
    if not config["attention_k_eq_v"] and config["num_global_key_value_heads"] == config["num_key_value_heads"]:
        config["num_global_key_value_heads"] = None
    narrow = min(widths) if isinstance(widths, tuple) else widths
    config["intermediate_size"] = narrow
    config["use_double_wide_mlp"] = isinstance(widths, tuple) and max(widths) == 2 * narrow
    # Frequencies that do not turn are divided by a very large number.
    factors = numbers(settings, ROPE_FACTORS, far // 2)
    full = config["rope_parameters"]["full_attention"]
    full |= {"rope_type": "proportional", "partial_rotary_factor": factors.count(1.0) / len(factors)}
    config["enable_moe_block"] = settings.has("blk.0.ffn_gate_inp.weight")
    if config["enable_moe_block"]:
        config["num_experts"] = settings.whole("expert_count")
        config["top_k_experts"] = settings.whole("expert_used_count")
        config["moe_intermediate_size"] = settings.whole("expert_feed_forward_length")
    else:
        settings.take("expert_feed_forward_length")


def olmo2(settings: Settings, config: Config) -> None:
    """OLMo 2, or OLMo 3 where layers have windows."""
    if window := settings.take("attention.sliding_window", 0):
        pattern = settings.take("attention.sliding_window_pattern")
        settings.take("rope.freq_base_swa")
        if not isinstance(pattern, tuple) or len(pattern) != config["num_hidden_layers"]:
            raise settings.error("says of other layers than its own which of them are local")
        config |= {"model_type": "olmo3", "sliding_window": window}
        config["layer_types"] = ["sliding_attention" if near else "full_attention" for near in pattern]


def exaone4(settings: Settings, config: Config) -> None:
    config["sliding_window"] = settings.take("attention.sliding_window", 0) or None
    pattern = settings.take("attention.sliding_window_pattern")
    layers = range(config["num_hidden_layers"])
    near = pattern if isinstance(pattern, tuple) else [bool((index + 1) % 4) for index in layers]
    kinds = ["sliding_attention" if local else "full_attention" for local in near]
    config["layer_types"] = kinds if config["sliding_window"] else ["full_attention"] * len(layers)
    config["sliding_window_pattern"] = None


def glm4_moe(settings: Settings, config: Config) -> None:
    """GLM-4.5 and dots.llm1."""
    settings.take("rope.dimension_sections")
    config["moe_intermediate_size"] = settings.whole("expert_feed_forward_length")
    config["n_shared_experts"] = settings.take("expert_shared_count", 0)
    config["first_k_dense_replace"] = _dense_layers(settings, config)
    config["attention_bias"] = settings.has("blk.0.attn_q.bias")
    config["use_qk_norm"] = settings.has("blk.0.attn_q_norm.weight")
    settings.expect("expert_gating_func", _SIGMOID)
    _routed(settings, config)


def ernie_moe(settings: Settings, config: Config) -> None:
    config |= {
        "moe_num_experts": settings.whole("expert_count"),
        "moe_k": settings.whole("expert_used_count"),
        "moe_intermediate_size": settings.whole("expert_feed_forward_length"),
        "moe_num_shared_experts": settings.take("expert_shared_count", 0),
        "moe_layer_start_index": _dense_layers(settings, config),
        "moe_layer_end_index": config["num_hidden_layers"] - 1,
        "moe_layer_interval": settings.whole("interleave_moe_layer_step", 1),
    }
    settings.take("expert_shared_feed_forward_length")


def minimax_m2(settings: Settings, config: Config) -> None:
    config["intermediate_size"] = settings.whole("expert_feed_forward_length", config["intermediate_size"])
    config["num_local_experts"] = settings.whole("expert_count")
    config["num_experts_per_tok"] = settings.whole("expert_used_count")
    config["rotary_dim"] = round(config["rope_parameters"]["partial_rotary_factor"] * config["head_dim"])
    settings.expect("expert_gating_func", _SIGMOID)


def starcoder2(settings: Settings, config: Config) -> None:
    config["norm_epsilon"] = config.pop("rms_norm_eps")
    config["use_bias"] = settings.has("blk.0.attn_q.bias")
    config["sliding_window"] = None


def mamba2(settings: Settings, config: Config) -> None:
    _mamba2(settings, config, "num_heads", "head_dim")
    _of_mamba(settings, config)


def mamba(settings: Settings, config: Config) -> None:
    """Mamba, or Falcon-Mamba where the parts of its state are normed."""
    config |= {
        "state_size": settings.whole("ssm.state_size"),
        "conv_kernel": settings.whole("ssm.conv_kernel"),
        "time_step_rank": settings.whole("ssm.time_step_rank"),
        "inner": settings.whole("ssm.inner_size"),
    }
    if settings.take("ssm.dt_b_c_rms", False):
        config["model_type"] = "falcon_mamba"
    _of_mamba(settings, config)
    config["intermediate_size"] = config["expand"] * config["hidden_size"]


def _of_mamba(settings: Settings, config: Config) -> None:
    config["expand"] = config.pop("inner") // config["hidden_size"]
    config["layer_norm_epsilon"] = config.pop("rms_norm_eps")
    config["use_conv_bias"] = settings.has("blk.0.ssm_conv1d.bias")
    config["use_bias"] = settings.has("blk.0.ssm_in.bias")


def jamba(settings: Settings, config: Config) -> None:
    del config["rope_parameters"]
    layers = range(config["num_hidden_layers"])
    for name, tensor in (("attn_layer", "attn_q"), ("expert_layer", "ffn_gate_inp")):
        there = [layer for layer in layers if settings.has(f"blk.{layer}.{tensor}.weight")]
        period = there[1] - there[0] if len(there) > 1 else len(layers)
        if not there or there != [layer for layer in layers if layer % period == there[0] % period]:
            raise settings.error("has layers in no regular order, which transformers' Jamba cannot have")
        config |= {f"{name}_period": period, f"{name}_offset": there[0] % period}
    config |= {
        "num_experts": settings.whole("expert_count"),
        "num_experts_per_tok": settings.whole("expert_used_count"),
        "mamba_d_state": settings.whole("ssm.state_size"),
        "mamba_d_conv": settings.whole("ssm.conv_kernel"),
        "mamba_dt_rank": settings.whole("ssm.time_step_rank"),
        "mamba_expand": settings.whole("ssm.inner_size") // config["hidden_size"],
        "mamba_conv_bias": settings.has("blk.0.ssm_conv1d.bias"),
    }

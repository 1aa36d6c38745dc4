"""Where the tensors of a GGUF file lie in a transformers model, and what llama.cpp's converter did to them.

The names are those of llama.cpp's `gguf-py/gguf/constants.py`; the changes are made in its `conversion/`, one class a
family, and are undone here:

- Llama and Granite (`llama.py`, `permute`): the two rows of a head that are rotated together stand beside each other
  in queries and keys; in transformers they stand half a head apart.
- Gemma, Gemma 2 and 3, Qwen3-Next, Qwen3.5 (`gemma.py`, `qwen.py`): norms that multiply by 1 + w are stored as 1 + w;
  the gated norm of a delta net is not.
- Mamba and delta nets (`mamba.py`, `qwen.py`): the file has A = -exp(A_log); A, D and the norm in groups have an
  added dimension, the convolution [channels, 1, taps] has one less.
- Qwen3-Next (`qwen.py`): queries, keys, values and gates of a key head stand together in transformers' `in_proj_qkvz`;
  the file has two tensors, each of all heads.
- Qwen3.5 (`qwen.py`, `_reorder_v_heads`): the value heads of a key head follow each other in transformers; in the file
  the first value heads of all key heads come first. That holds for all that produces or takes value heads.
- Experts (all families): gates and ups are one tensor in transformers; in GPT-OSS they alternate, and there and in
  Llama 4 the experts' matrices are transposed.
- Latent attention (`deepseek.py`): `kv_b_proj` is split into keys, transposed head by head, and values.
- Falcon-H1 (`falcon_h1.py`): its multipliers are in the weights; the configuration has ones (`gguf_configs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from qpdsl.executor.checkpoint.gguf_header import GGUFTensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Names in a file, without "blk.N.", to names in a layer. Where a name has its kind (".weight"), the other one is whole.
Names = Mapping[str, str]
Order: TypeAlias = "NDArray[np.int64]"


@dataclass(frozen=True, slots=True)
class Undo:
    """What is to be undone.

    outputs:    int64, where each output of the model lies among those of the file; None where in the same order
    inputs:     the same for inputs
    values:     "minus one": norms multiply by 1 + w; "log": the file has -exp(w)
    transposed: whether the model has experts as [E, in, out]
    part:       which one of several tensors stacked to one
    latent:     whether the file has keys [H, r, k] and values [H, v, r] of latent attention apart
    """

    outputs: Order | None = None
    inputs: Order | None = None
    values: Literal["minus one", "log"] | None = None
    transposed: bool = False
    part: int | None = None
    latent: bool = False


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The tensors of the file that one of the model is made of, one's outputs behind the other's."""

    sources: tuple[GGUFTensor, ...]
    undo: Undo = Undo()

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in transformers' terms, but for dimensions of 1 and vectors in groups."""
        first, rows = self.sources[0], [tensor.shape for tensor in self.sources]
        if self.undo.latent:
            keys, values = rows
            return keys[0] * (keys[2] + values[1]), keys[1]
        if self.undo.part is not None:
            return first.shape[1:]
        if is_vector(first):
            return *first.shape[:-1], sum(shape[-1] for shape in rows)
        whole = (*first.shape[:-2], sum(shape[-2] for shape in rows), first.shape[-1])
        return (*whole[:-2], whole[-1], whole[-2]) if self.undo.transposed else whole


def is_vector(tensor: GGUFTensor) -> bool:
    """Whether the last dimension of a tensor is that of outputs."""
    return len(tensor.shape) == 1 or tensor.name.endswith(".bias")


# What a family undoes: of a name in a file without its kind, how many outputs it has there, and the configuration.
Undone = Callable[[str, int, Mapping[str, Any]], Undo]


def nothing(part: str, outputs: int, config: Mapping[str, Any]) -> Undo:
    return Undo()


def pairs(part: str, outputs: int, config: Mapping[str, Any]) -> Undo:
    if part not in ("attn_q", "attn_k"):
        return ssm(part, outputs, config)
    heads = config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
    return Undo(_arange(outputs).reshape(heads, -1, 2).swapaxes(1, 2).ravel())


def plus_one(part: str, outputs: int, config: Mapping[str, Any]) -> Undo:
    return Undo(values="minus one") if part.endswith("norm") else Undo()


def ssm(part: str, outputs: int, config: Mapping[str, Any]) -> Undo:
    return Undo(values="log") if part == "ssm_a" else Undo()


def alternating(part: str, outputs: int, config: Mapping[str, Any]) -> Undo:
    """GPT-OSS: gates and ups take turns."""
    if part == "ffn_gate_exps":
        return Undo(_arange(2 * outputs).reshape(2, -1).T.ravel(), transposed=True)
    return Undo(transposed=part == "ffn_down_exps")


def transposed_experts(part: str, outputs: int, config: Mapping[str, Any]) -> Undo:
    return Undo(transposed=part.endswith("_exps"))


def latent(part: str, outputs: int, config: Mapping[str, Any]) -> Undo:
    return Undo(latent=part == "attn_k_b")


def qwen3_next(part: str, outputs: int, config: Mapping[str, Any]) -> Undo:
    if part == "attn_qkv":
        heads, keys = config["linear_num_key_heads"], config["linear_key_head_dim"]
        values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        import numpy as np

        kinds = np.split(_arange(2 * heads * keys + 2 * values), np.cumsum([heads * keys, heads * keys, values]))
        return Undo(np.concatenate([kind.reshape(heads, -1) for kind in kinds], axis=1).ravel())
    return Undo() if part == "ssm_norm" else plus_one(part, outputs, config) if part != "ssm_a" else Undo(values="log")


def qwen3_5(part: str, outputs: int, config: Mapping[str, Any]) -> Undo:
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    dim = config["linear_value_head_dim"]
    if part == "ssm_out":
        return Undo(inputs=_grouped(keys, values, dim))
    if part in ("attn_gate", "ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt"):
        order = _grouped(keys, values, dim if part == "attn_gate" else 1)
        return Undo(order, values="log" if part == "ssm_a" else None)
    if part in ("attn_qkv", "ssm_conv1d"):
        import numpy as np

        before = 2 * keys * config["linear_key_head_dim"]
        return Undo(np.concatenate((_arange(before), before + _grouped(keys, values, dim))))
    return Undo() if part == "ssm_norm" else plus_one(part, outputs, config)


def _arange(count: int) -> Order:
    # What describes a file to `check` does without numpy.
    import numpy as np

    return np.arange(count)


def _grouped(keys: int, values: int, dim: int) -> Order:
    return _arange(values * dim).reshape(values // keys, keys, dim).swapaxes(0, 1).ravel()


MODEL: Names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER: Names = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def experts(place: str, router: str, shared: str = "") -> Names:
    """The names of a layer's experts, where transformers has them at `place`, and of those that all tokens take."""
    inner = place.rpartition(".")[0]
    own = {
        "ffn_gate_inp": f"{inner}.{router}",
        "ffn_gate_exps.weight": f"{place}.gate_up_proj",
        "ffn_up_exps.weight": f"{place}.gate_up_proj",
        "ffn_gate_up_exps.weight": f"{place}.gate_up_proj",
        "ffn_down_exps.weight": f"{place}.down_proj",
        "exp_probs_b.bias": f"{inner}.{router}.e_score_correction_bias",
    }
    all_take = {f"ffn_{kind}_shexp": f"{inner}.{shared}.{kind}_proj" for kind in ("gate", "up", "down")}
    return {**own, **all_take} if shared else own


def mixer(place: str) -> Names:
    """The names of a Mamba layer."""
    return {
        "ssm_in": f"{place}.in_proj",
        "ssm_conv1d": f"{place}.conv1d",
        "ssm_dt.bias": f"{place}.dt_bias",
        "ssm_a": f"{place}.A_log",
        "ssm_d": f"{place}.D",
        "ssm_norm": f"{place}.norm",
        "ssm_out": f"{place}.out_proj",
    }


FUSED: Names = {**LAYER, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
FOUR_NORMS: Names = {
    **LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# Norms behind attention and behind the MLP only.
TWO_AFTER: Names = {name: place for name, place in FOUR_NORMS.items() if name not in ("attn_norm", "ffn_norm")}
GLM4: Names = {
    **LAYER,
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    "ffn_up": "mlp.gate_up_proj",
}
# The norm before the MLP is named for what it follows.
AFTER_ATTENTION: Names = {**LAYER, "post_attention_norm": "post_attention_layernorm"}
MIXTRAL: Names = {**LAYER, **experts("mlp.experts", "gate")}
QWEN_MOE: Names = {
    **LAYER,
    **experts("mlp.experts", "gate", "shared_expert"),
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
MOE_SHARED: Names = {**LAYER, **experts("mlp.experts", "gate", "shared_experts")}
ERNIE_MOE: Names = {**MOE_SHARED, "exp_probs_b.bias": "mlp.gate.moe_statics.e_score_correction_bias"}
GLM4_MOE: Names = {**MOE_SHARED, "post_attention_norm": "post_attention_layernorm"}
MINIMAX_M2: Names = {**MIXTRAL, "exp_probs_b.bias": "mlp.e_score_correction_bias"}
GPT_OSS: Names = {
    **AFTER_ATTENTION,
    **experts("mlp.experts", "router"),
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_exps.bias": "mlp.experts.gate_up_proj_bias",
    "ffn_up_exps.bias": "mlp.experts.gate_up_proj_bias",
    "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
}
MLA: Names = {
    **LAYER,
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b.weight": "self_attn.kv_b_proj.weight",
    "attn_v_b.weight": "self_attn.kv_b_proj.weight",
}
DEEPSEEK: Names = {**MLA, **experts("mlp.experts", "gate", "shared_experts")}
LFM2: Names = {
    **LAYER,
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
LFM2_MOE: Names = {
    **LFM2,
    **experts("feed_forward.experts", "gate"),
    "exp_probs_b.bias": "feed_forward.expert_bias",
}
# Older files have the last norm under the name that others have for it.
LFM2_MODEL: Names = {**MODEL, "output_norm": "model.embedding_norm", "token_embd_norm": "model.embedding_norm"}
GRANITE_MOE: Names = {
    **LAYER,
    **experts("block_sparse_moe.experts", "router"),
    "ffn_gate_shexp": "shared_mlp.input_linear",
    "ffn_up_shexp": "shared_mlp.input_linear",
    "ffn_down_shexp": "shared_mlp.output_linear",
}
GRANITE_HYBRID: Names = {
    **GRANITE_MOE,
    **mixer("mamba"),
    "ffn_gate": "shared_mlp.input_linear",
    "ffn_up": "shared_mlp.input_linear",
    "ffn_down": "shared_mlp.output_linear",
}
_FEED_FORWARD: Names = {f"ffn_{kind}": f"feed_forward.{kind}_proj" for kind in ("gate", "up", "down")}
LLAMA4: Names = {**LAYER, **_FEED_FORWARD, **experts("feed_forward.experts", "router", "shared_expert")}
_DELTA: Names = {
    "post_attention_norm": "post_attention_layernorm",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
QWEN3_NEXT: Names = {
    **QWEN_MOE,
    **_DELTA,
    "attn_qkv": "linear_attn.in_proj_qkvz",
    "attn_gate": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
}
_QWEN3_5: Names = {
    **_DELTA,
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
}
QWEN3_5: Names = {**LAYER, **_QWEN3_5}
QWEN3_5_MOE: Names = {**QWEN_MOE, **_QWEN3_5}
NEMOTRON_H: Names = {
    **mixer("mixer"),
    **experts("mixer.experts", "gate", "shared_experts"),
    "attn_norm": "norm",
    **{f"attn_{name}": f"mixer.{name}_proj" for name in "qkv"},
    "attn_output": "mixer.o_proj",
    "ffn_up": "mixer.up_proj",
    "ffn_down": "mixer.down_proj",
    "ffn_up_exps.weight": "mixer.experts.up_proj",
    "ffn_latent_down": "mixer.fc1_latent_proj",
    "ffn_latent_up": "mixer.fc2_latent_proj",
}
NEMOTRON_H_MODEL: Names = {"token_embd": "model.embeddings", "output_norm": "model.norm_f", "output": "lm_head"}
FALCON_H1: Names = {**LAYER, **mixer("mamba"), **_FEED_FORWARD, "ffn_norm": "pre_ff_layernorm.weight"}
_FINAL: Names = {"output_norm": "model.final_layernorm"}
FALCON_H1_MODEL: Names = {**MODEL, **_FINAL}
MAMBA2: Names = {**mixer("mixer"), "attn_norm": "norm"}
MAMBA: Names = {**MAMBA2, "ssm_x": "mixer.x_proj", "ssm_dt": "mixer.dt_proj", "ssm_dt.bias": "mixer.dt_proj.bias"}
MAMBA_MODEL: Names = {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"}
JAMBA: Names = {
    **LAYER,
    **mixer("mamba"),
    **_FEED_FORWARD,
    **experts("feed_forward.experts", "router"),
    "ffn_norm": "pre_ff_layernorm",
    "ssm_x": "mamba.x_proj",
    "ssm_dt": "mamba.dt_proj",
    "ssm_dt.bias": "mamba.dt_proj.bias",
    **{f"ssm_{name}_norm": f"mamba.{name}_layernorm" for name in ("dt", "b", "c")},
}
_PER_LAYER_INPUT: Names = {
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
GEMMA4: Names = {
    **FOUR_NORMS,
    **_PER_LAYER_INPUT,
    "layer_output_scale.weight": "layer_scalar",
    **{f"ffn_{kind}_exps.weight": "experts.gate_up_proj" for kind in ("gate", "up", "gate_up")},
    "ffn_down_exps.weight": "experts.down_proj",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
}
GEMMA3N: Names = {
    **FOUR_NORMS,
    **_PER_LAYER_INPUT,
    "altup_correct_scale.weight": "altup.correct_output_scale",
    "altup_correct_coef": "altup.correction_coefs",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
}
PER_LAYER_MODEL: Names = {
    **MODEL,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "altup_proj": "model.altup_projections.#",
    "altup_unembd_proj": "model.altup_unembed_projections.#",
}
STARCODER2: Names = {**LAYER, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
HUNYUAN: Names = {**LAYER, "attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}

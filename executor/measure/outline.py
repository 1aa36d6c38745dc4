"""The numbers of a model by its configuration alone: transformers builds it without weights, and it is counted.

So shared heads, biases, experts and whatever a family has of its own count as they do when it is loaded. On torch's
meta device a model takes no memory but that of its modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.checkpoint.safe_files import without_code
from qpdsl.executor.engine.model.mixers import Mixers
from qpdsl.executor.models.language_part import language_part, writing_class
from qpdsl.planner.capacity.architecture import Architecture, Experts

# More layers than any model has: building them would take minutes.
_MAX_LAYERS = 1000
_LONGEST_REASON = 300
_NUMBER_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_USED = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk")
# What layers keep otherwise than as keys and values of each token; the words go on from "it".
_KEEPS_OTHERWISE = {
    "index_topk": "keeps keys of an index too",
    "num_kv_shared_layers": "shares keys and values between layers",
    "global_head_dim": "has heads of several widths",
}
# Kinds of layers that have no keys and values.
_UNATTENDING = {"linear_attention", "conv", "mlp", "moe"}
_WRITERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def outline(name: str, configuration: Mapping[str, Any], stored_bytes: int | None = None) -> Architecture:
    """The numbers of the model that a config.json describes; `stored_bytes` are those of its weight files.

    Raises ModelError where transformers knows no such model, or its keys and values are not those of every token.
    """
    config = _config(name, configuration)
    text = config.get_text_config()
    _check(name, text)
    try:
        with torch.device("meta"):
            writes = any(word in kind for kind in config.architectures or _WRITERS for word in _WRITERS)
            model = ((writing_class(config) or AutoModelForCausalLM) if writes else AutoModel).from_config(config)
            model = language_part(model)
        return _counted(name, model, text, stored_bytes)
    except ModelError:
        raise
    except Exception as error:
        # Whatever transformers raises for numbers that make no model.
        raise _error(name, f"its configuration makes no model ({_in_words(error)})") from error


def _counted(name: str, model: PreTrainedModel, text: PretrainedConfig, stored_bytes: int | None) -> Architecture:
    heads = int(text.num_attention_heads)
    head_dim = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    shared = head is not None and head.weight is embedding
    # Of latent attention: one vector and a rotated part of the key, which all heads share.
    latent = getattr(text, "kv_lora_rank", None)
    kv_heads = 1 if latent else _kv_heads(name, model, text, heads, head_dim)
    if latent:
        head_dim = latent + text.qk_rope_head_dim
    experts = _experts(model, text)
    width = int(getattr(text, "intermediate_size", None) or 4 * text.hidden_size)
    if experts is not None:
        width = int(getattr(text, "moe_intermediate_size", None) or width) * experts.used
    windows = _windows(name, text)
    states = Mixers.of(model.base_model, text, text.dtype if isinstance(text.dtype, torch.dtype) else torch.bfloat16)
    return Architecture(
        name,
        sum(parameter.numel() for parameter in model.parameters()),
        0 if shared else embedding.numel(),
        int(text.hidden_size),
        width,
        int(text.vocab_size),
        heads,
        kv_heads,
        head_dim,
        windows,
        experts,
        _NUMBER_TYPES.get(str(text.dtype).removeprefix("torch."), "bf16"),
        stored_bytes,
        latent,
        int(text.num_hidden_layers) - len(windows),
        0 if states is None else states.layout.block_bytes,
    )


def _config(name: str, configuration: Mapping[str, Any]) -> PretrainedConfig:
    """Raises ModelError."""
    settings = without_code(configuration)
    # The weights of a quantized checkpoint are as many as those of the model that it was made from.
    settings.pop("quantization_config", None)
    kind = settings.pop("model_type", None)
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        what = "its configuration names no `model_type`" if kind is None else f"transformers knows no `{kind}`"
        raise _error(name, what)
    try:
        return AutoConfig.for_model(kind, **settings)
    except Exception as error:
        raise _error(name, f"its configuration is damaged ({_in_words(error)})") from error


def _check(name: str, text: PretrainedConfig) -> None:
    """Raises ModelError where the model is none that this arithmetic holds for."""
    for key, why in _KEEPS_OTHERWISE.items():
        if getattr(text, key, None):
            raise _error(name, f"it {why} (`{key}`), which is not counted here")
    for key in ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size"):
        value = getattr(text, key, None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise _error(name, f"its configuration has no `{key}` above 0")
    if text.num_hidden_layers > _MAX_LAYERS:
        raise _error(name, f"its configuration has {text.num_hidden_layers:,} layers")


def _experts(model: PreTrainedModel, text: PretrainedConfig) -> Experts | None:
    count = next((value for key in _EXPERTS if isinstance(value := getattr(text, key, None), int) and value), 0)
    used = next((value for key in _USED if isinstance(value := getattr(text, key, None), int) and value), 0)
    parameters = sum(value.numel() for key, value in model.named_parameters() if ".experts." in key)
    return Experts(parameters, count, min(used, count)) if parameters and count and used else None


def _kv_heads(name: str, model: PreTrainedModel, text: PretrainedConfig, heads: int, head_dim: int) -> int:
    """By the configuration and, where a layer has a projection of keys, by that."""
    kv_heads = int(getattr(text, "num_key_value_heads", None) or (1 if getattr(text, "multi_query", False) else heads))
    for key, module in model.named_modules():
        if key.endswith((".k_proj", ".key_proj")) and isinstance(module, torch.nn.Linear):
            if module.out_features != kv_heads * head_dim:
                raise _error(name, f"`{key}` makes {module.out_features} numbers, not {kv_heads} heads of {head_dim}")
            break
    return kv_heads


def _windows(name: str, text: PretrainedConfig) -> tuple[int | None, ...]:
    """How far back each layer attends that does. Raises ModelError where a layer does otherwise."""
    window = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    if kinds is None:
        slides = isinstance(window, int) and window > 0 and getattr(text, "use_sliding_window", True)
        return (window if slides else None,) * int(text.num_hidden_layers)
    reach = {
        "full_attention": None,
        "sliding_attention": window,
        "chunked_attention": getattr(text, "attention_chunk_size", None),
        "hybrid": None,
    }
    if others := sorted(set(kinds) - set(reach) - _UNATTENDING):
        raise _error(name, f"it has layers of the kind `{others[0]}`, which are not counted here")
    return tuple(reach[kind] for kind in kinds if kind not in _UNATTENDING)


def _in_words(error: Exception) -> str:
    """An error of a library in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]


def _error(name: str, reason: str) -> ModelError:
    return ModelError(name, reason)

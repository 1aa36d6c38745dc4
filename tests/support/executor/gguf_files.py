"""GGUF files as llama.cpp's converter writes them, from small models with random weights."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from qpdsl import zoo

# Data of a tensor: its type's number, its shape, and its bytes.
Data = tuple[int, tuple[int, ...], bytes]
_ALIGNMENT = 32


def gguf_bytes(metadata: Mapping[str, Any], tensors: Mapping[str, Data], version: int = 3) -> bytes:
    """The bytes of a GGUF file (ggml's `docs/gguf.md`)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(_text(name) + _typed(value) for name, value in metadata.items())
    body = b""
    for name, (kind, shape, data) in tensors.items():
        head += _text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, len(body))
        body += data + bytes(-len(data) % _ALIGNMENT)
    return head + bytes(-len(head) % _ALIGNMENT) + body


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _typed(value: Any) -> bytes:
    kind, data = _value(value)
    return struct.pack("<I", kind) + data


def _value(value: Any) -> tuple[int, bytes]:
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return 4, struct.pack("<I", value)
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return 8, _text(value)
    # Lists have signed numbers.
    parts = [(5, struct.pack("<i", part)) if type(part) is int else _value(part) for part in value]
    return 9, struct.pack("<IQ", parts[0][0], len(parts)) + b"".join(data for _, data in parts)


def tokenizer_metadata() -> dict[str, Any]:
    """The tokenizer of the built-in models."""
    folder = zoo.path("zoo/counting")
    data = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    special = {token["content"]: token["id"] for token in data["added_tokens"] if token["special"]}
    ids = {**data["model"]["vocab"], **special}
    tokens = sorted(ids, key=lambda token: ids[token])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in data["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": 4,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": (folder / "chat_template.jinja").read_text("utf-8"),
    }


# What the converter calls settings: name in the file, name in the configuration.
_SETTINGS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_OWN_SETTINGS = {
    "gemma2": {
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    "gemma3": {"attention.sliding_window": "sliding_window"},
    "granite": {
        "logit_scale": "logits_scaling",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "attention.scale": "attention_multiplier",
    },
}
_SHAPE = {
    "vocab_size": 768,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 4,
    "pad_token_id": 0,
}
_HEAD = {"head_dim": 32}
_OWN = {
    "gemma": _HEAD,
    "gemma2": {**_HEAD, "query_pre_attn_scalar": 32, "sliding_window": 24},
    # Every sixth layer is global.
    "gemma3": {**_HEAD, "query_pre_attn_scalar": 32, "sliding_window": 24, "num_hidden_layers": 7},
    "glm4": {**_HEAD, "tie_word_embeddings": False},
    "granite": {
        "logits_scaling": 4.0,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.25,
    },
    "qwen3": _HEAD,
    "phi3": {"tie_word_embeddings": False},
    # Every fourth layer rotates nothing.
    "smollm3": {"tie_word_embeddings": True, "num_hidden_layers": 5},
}


def family_model(architecture: str, **changes: Any) -> PreTrainedModel:
    """A float32 model of the family that llama.cpp calls so; also its norms and biases are random."""
    torch.manual_seed(0)
    model_type = {"gemma3": "gemma3_text"}.get(architecture, architecture)
    config = CONFIG_MAPPING[model_type](**{**_SHAPE, **_OWN.get(architecture, {}), **changes})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def write_gguf(
    path: Path,
    architecture: str,
    model: PreTrainedModel,
    types: Sequence[str] = ("F32",),
    more: Mapping[str, Any] | None = None,
    drop: Sequence[str] = (),
    extra: Mapping[str, Data] | None = None,
) -> None:
    """Writes a model to a file, and makes the model's own weights those of the file.

    Its matrices take the `types` in turn. `more` settings and `extra` tensors are added, and settings in `drop` left
    out.
    """
    settings = _settings(architecture, model.config)
    metadata = {
        "general.architecture": architecture,
        "general.name": "a test",
        **{f"{architecture}.{name}": value for name, value in settings.items()},
        **tokenizer_metadata(),
        **(more or {}),
    }
    for name in drop:
        del metadata[name]
    path.write_bytes(gguf_bytes(metadata, {**_tensors(architecture, model, types), **(extra or {})}))


def _settings(architecture: str, config: PretrainedConfig) -> dict[str, Any]:
    names = {**_SETTINGS, **_OWN_SETTINGS.get(architecture, {})}
    found: dict[str, Any] = {setting: getattr(config, name) for setting, name in names.items()}
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    found["rope.freq_base"] = float(rope["rope_theta"])
    found["rope.dimension_count"] = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    if architecture not in ("granite", "phi3"):
        found |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    return found


def _tensors(architecture: str, model: PreTrainedModel, types: Sequence[str]) -> dict[str, Data]:
    from gguf import GGMLQuantizationType, get_tensor_name_map
    from gguf.constants import MODEL_ARCH_NAMES
    from gguf.quants import dequantize, quantize

    arch = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == architecture)
    config = model.config
    names = get_tensor_name_map(arch, config.num_hidden_layers)
    changed = _CHANGES.get(architecture, lambda name, values, config: values)
    back = _UNDONE.get(architecture, lambda name, values, config: values)
    tied = config.tie_word_embeddings
    found: dict[str, Data] = {}
    matrices = 0
    for name, parameter in model.named_parameters():
        if tied and name == "lm_head.weight":
            continue
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        kind = GGMLQuantizationType.F32
        if parameter.dim() == 2:
            kind = GGMLQuantizationType[types[matrices % len(types)]]
            matrices += 1
        values = changed(name, parameter.detach(), config).contiguous().numpy()
        data = quantize(values, kind)
        found[own] = (int(kind), tuple(parameter.shape), np.ascontiguousarray(data).tobytes())
        rounded = torch.from_numpy(np.array(dequantize(data, kind)).reshape(values.shape))
        parameter.data.copy_(back(name, rounded, config))
    return found


def floats(values: Sequence[float]) -> Data:
    """A vector of float32."""
    return 0, (len(values),), struct.pack(f"<{len(values)}f", *values)


def _heads(name: str, config: PretrainedConfig) -> int | None:
    if ".q_proj." in name:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if ".k_proj." in name else None


def _permuted(name: str, values: torch.Tensor, config: PretrainedConfig) -> torch.Tensor:
    """`LlamaModel.permute` of llama.cpp's `conversion/llama.py`."""
    if (heads := _heads(name, config)) is None:
        return values
    rows = values.shape[0]
    return values.reshape(heads, 2, rows // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _unpermuted(name: str, values: torch.Tensor, config: PretrainedConfig) -> torch.Tensor:
    if (heads := _heads(name, config)) is None:
        return values
    rows = values.shape[0]
    return values.reshape(heads, rows // heads // 2, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _one_more(name: str, values: torch.Tensor, config: PretrainedConfig) -> torch.Tensor:
    return values + 1 if name.endswith("norm.weight") else values


def _one_less(name: str, values: torch.Tensor, config: PretrainedConfig) -> torch.Tensor:
    return values - 1 if name.endswith("norm.weight") else values


_Change = Callable[[str, torch.Tensor, PretrainedConfig], torch.Tensor]
_PAIRS, _PLUS = ("llama", "granite", "smollm3"), ("gemma", "gemma2", "gemma3")
_CHANGES: dict[str, _Change] = {**dict.fromkeys(_PAIRS, _permuted), **dict.fromkeys(_PLUS, _one_more)}
_UNDONE: dict[str, _Change] = {**dict.fromkeys(_PAIRS, _unpermuted), **dict.fromkeys(_PLUS, _one_less)}

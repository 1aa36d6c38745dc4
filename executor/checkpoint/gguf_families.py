"""The families whose GGUF files are read: settings and tensors by transformers' names, and how these were changed.

A GGUF file describes its model in llama.cpp's terms. llama.cpp's converter (`conversion/` in its repository, one class
a family) made them from a Hugging Face model; here is the way back. Some settings are in llama.cpp's code and not in
the file (`src/models/`). A setting or a tensor that is not known here is refused: it would change the model.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from qpdsl.executor.checkpoint.errors import CheckpointError
from qpdsl.executor.checkpoint.gguf_header import GGUFHeader, GGUFTensor

# What the converter did to a tensor. "pairs": it put the two rows beside each other that are rotated together, head by
# head; they stand half a head apart in transformers. "plus one": norms multiply by 1 + w in transformers.
Change = Literal["pairs", "plus one"]

_LAYER = {
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
_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_FOUR_NORMS = {
    **_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# The factors of Llama 3's rotary frequencies, as a tensor; transformers computes them from four numbers.
_ROPE_FACTORS = "rope_freqs.weight"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# Tokens that end an answer, by their texts: llama.cpp's list, as files name only one or two of theirs.
_ENDS = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<｜end▁of▁sentence｜>",
    }
)
_TOKENIZER = "tokenizer.ggml."
# Types of tensors that `executor/models/gguf_model.py` unpacks.
READ = frozenset({"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "IQ4_XS"}) | {
    f"Q{bits}_K" for bits in range(2, 7)
}


class _Settings:
    """The settings of a file's own family, by name; every one must be asked for."""

    def __init__(self, header: GGUFHeader) -> None:
        prefix = f"{header.architecture}."
        self.header = header
        self._left = {
            name.removeprefix(prefix): value for name, value in header.metadata.items() if name.startswith(prefix)
        }

    def take(self, name: str, default: Any = None) -> Any:
        return self._left.pop(name, default)

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number above 0. Raises CheckpointError."""
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise self.error(f"has `{value}` for the setting `{name}`, which must be a whole number above 0")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """A finite number above 0. Raises CheckpointError."""
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(f"has `{value}` for the setting `{name}`, which must be a number above 0")
        return float(value)

    def expect(self, name: str, *values: object) -> None:
        """Raises CheckpointError where the setting is there and has none of these values."""
        value = self.take(name, values[0])
        if value not in values:
            raise self.error(f"has `{value}` for the setting `{name}`, which qpdsl does not know for this family")

    def done(self) -> None:
        """Raises CheckpointError where a setting is left that nothing here knows."""
        if self._left:
            name = min(self._left)
            raise self.error(f"has the setting `{name}`, which qpdsl does not know for this family")

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(f"`{self.header.path.name}` (`{self.header.architecture}`) {what}")


def _plain(settings: _Settings, config: dict[str, Any]) -> None:
    """For families whose configuration has nothing of its own."""


def _partial_rotary(settings: _Settings, config: dict[str, Any]) -> None:
    config["attention_bias"] = "blk.0.attn_q.bias" in settings.header.tensors


def _phi3(settings: _Settings, config: dict[str, Any]) -> None:
    if any(name.startswith("rope_factors_") for name in settings.header.tensors):
        raise settings.error("has the longrope position encoding, whose results depend on the longest text of a batch")
    window = settings.take("attention.sliding_window", 0)
    config["sliding_window"] = window or None
    config["original_max_position_embeddings"] = config["max_position_embeddings"]


def _granite(settings: _Settings, config: dict[str, Any]) -> None:
    config["logits_scaling"] = settings.real("logit_scale")
    config["embedding_multiplier"] = settings.real("embedding_scale", 1.0)
    config["residual_multiplier"] = settings.real("residual_scale", 1.0)
    config["attention_multiplier"] = settings.real("attention.scale", config["head_dim"] ** -0.5)
    # Without rotary positions it is another model (`granite` in llama.cpp reads this as a switch).
    settings.expect("rope.scaling.finetuned", True)


def _gemma2(settings: _Settings, config: dict[str, Any]) -> None:
    config["sliding_window"] = settings.whole("attention.sliding_window", 4096)
    config["attn_logit_softcapping"] = settings.real("attn_logit_softcapping", 50.0)
    config["final_logit_softcapping"] = settings.real("final_logit_softcapping", 30.0)
    config["query_pre_attn_scalar"] = _gemma_scale(config, 46)


def _gemma3(settings: _Settings, config: dict[str, Any]) -> None:
    layers = config["num_hidden_layers"]
    window = settings.take("attention.sliding_window", 0)
    pattern = settings.take("attention.sliding_window_pattern", 6)
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
    config["final_logit_softcapping"] = settings.take("final_logit_softcapping")
    config["query_pre_attn_scalar"] = _gemma_scale(config, 62)
    settings.expect("rope.dimension_count_swa", config["head_dim"])


def _gemma_scale(config: Mapping[str, Any], layers_of_27b: int) -> int:
    """Attention is scaled by the root of this; the 27B models have a number of their own."""
    if config["num_hidden_layers"] == layers_of_27b:
        return int(config["hidden_size"]) // int(config["num_attention_heads"])
    return int(config["head_dim"])


@dataclass(frozen=True, slots=True)
class _Family:
    """How to read the files of one architecture.

    `model_type` is transformers' name, `layer` the names of a layer's tensors, and `own` adds what the configuration
    has besides. `rotated_pairs`: whether the rows of queries and keys were put in pairs. `adds_one`: whether norms had
    1 added. `rotates_part`: whether the model may rotate a part of each head only.
    """

    model_type: str
    layer: Mapping[str, str] = field(default_factory=lambda: _LAYER)
    own: Callable[[_Settings, dict[str, Any]], None] = _plain
    rotated_pairs: bool = False
    adds_one: bool = False
    rotates_part: bool = False


_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_GLM4 = {
    **_LAYER,
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    "ffn_up": "mlp.gate_up_proj",
}
FAMILIES: Mapping[str, _Family] = {
    "gemma": _Family("gemma", adds_one=True),
    "gemma2": _Family("gemma2", _FOUR_NORMS, _gemma2, adds_one=True),
    "gemma3": _Family("gemma3_text", _FOUR_NORMS, _gemma3, adds_one=True),
    "glm4": _Family("glm4", _GLM4, _partial_rotary, rotates_part=True),
    "granite": _Family("granite", own=_granite, rotated_pairs=True),
    "llama": _Family("llama", rotated_pairs=True),
    "olmo2": _Family("olmo2", {**_FOUR_NORMS, "ffn_norm": ""}),
    "phi3": _Family("phi3", {**_LAYER, **_FUSED}, _phi3, rotates_part=True),
    "qwen2": _Family("qwen2"),
    "qwen3": _Family("qwen3"),
    "smollm3": _Family("smollm3", rotated_pairs=True),
}
# Of these, what has biases says so in its configuration.
_MAY_HAVE_BIASES = ("llama", "granite", "smollm3")
_NO_HEAD_DIM = ("granite", "olmo2", "phi3", "qwen2", "smollm3")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor of the model lies in the file, and what is to be undone."""

    stored: GGUFTensor
    change: Change | None = None


@dataclass(frozen=True)
class GGUFModel:
    """A GGUF file as a Hugging Face model: `config` and `generation_config` are what their files would hold.

    `tensors` are by transformers' names.
    """

    header: GGUFHeader
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def of(cls, path: Path) -> GGUFModel:
        """Raises CheckpointError where the file is no whole GGUF file of a known family, and OSError."""
        stat = path.stat()
        return _read(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)

    @property
    def kinds(self) -> str:
        """How the weights are stored, the most common way first, in words."""
        matrices = [tensor.stored for tensor in self.tensors.values() if len(tensor.stored.shape) > 1]
        layers = [tensor.type for tensor in matrices if tensor.name.startswith("blk.")]
        others = {"token_embd.weight": "embedding", "output.weight": "head"}
        ends = [f"{others[tensor.name]} {tensor.type}" for tensor in matrices if tensor.name in others]
        return ", ".join([*sorted(set(layers), key=lambda kind: (-layers.count(kind), kind)), *ends])


@lru_cache(maxsize=8)
def _read(path: Path, *state: int) -> GGUFModel:
    """Reads a file. Commands look at a model several times; `state` is what would change with the file."""
    header = GGUFHeader.of(path)
    name, kind = path.name, header.metadata.get("general.type", "model")
    if kind != "model":
        raise CheckpointError(f"`{name}` holds no language model, but what llama.cpp calls `{kind}`")
    family = FAMILIES.get(header.architecture)
    if family is None:
        known = ", ".join(FAMILIES)
        raise CheckpointError(
            f"`{name}` is of the architecture `{header.architecture}`; of GGUF files these are read: {known}. "
            "The model's safetensors files may run"
        )
    tokens = header.metadata.get(f"{_TOKENIZER}tokens")
    if header.metadata.get(f"{_TOKENIZER}model") is None or not isinstance(tokens, tuple):
        raise CheckpointError(f"`{name}` has no tokenizer")
    return GGUFModel(header, _config(header, family), _generation_config(header), _tensors(header, family))


def _config(header: GGUFHeader, family: _Family) -> dict[str, Any]:
    settings = _Settings(header)
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise settings.error("has no embeddings (`token_embd.weight`)")
    hidden, heads = settings.whole("embedding_length"), settings.whole("attention.head_count")
    layers = settings.whole("block_count")
    if layers > len(header.tensors):
        raise settings.error(f"has {len(header.tensors)} tensors, too few for {layers:,} layers")
    head_dim = settings.whole("attention.key_length", max(1, hidden // heads))
    settings.expect("attention.value_length", head_dim)
    config: dict[str, Any] = {
        "model_type": family.model_type,
        "dtype": "float32",
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": settings.whole("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": settings.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": settings.whole("context_length"),
        "rms_norm_eps": settings.real("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_parameters": _rope(settings, family, head_dim),
        **{f"{name}_token_id": _token(header, key) for name, key in _SPECIAL.items()},
    }
    if header.architecture in _MAY_HAVE_BIASES:
        config["attention_bias"] = "blk.0.attn_output.bias" in header.tensors
        config["mlp_bias"] = "blk.0.ffn_down.bias" in header.tensors
    family.own(settings, config)
    if header.architecture in _NO_HEAD_DIM and head_dim * heads != hidden:
        raise settings.error(f"has heads of {head_dim} numbers, which transformers' models of this family cannot have")
    for name in ("expert_count", "expert_used_count", "nextn_predict_layers", "attention.sliding_window"):
        settings.expect(name, 0)
    settings.expect("attention.causal", True)
    settings.take("vocab_size")
    settings.take("rope.scaling.finetuned")
    settings.done()
    return config


_SPECIAL = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "padding_token_id"}


def _rope(settings: _Settings, family: _Family, head_dim: int) -> dict[str, Any]:
    """The position encoding, as `rope_parameters` of a configuration."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": settings.real("rope.freq_base", 10000.0)}
    rotated = settings.whole("rope.dimension_count", head_dim)
    if family.rotates_part:
        rope["partial_rotary_factor"] = rotated / head_dim
    elif rotated != head_dim:
        raise settings.error(f"rotates {rotated} of the {head_dim} numbers of a head, which is not known of its family")
    kind = settings.take("rope.scaling.type", "none")
    scale = settings.take("rope.scale_linear", 1.0)
    factor = settings.take("rope.scaling.factor", scale)
    original = settings.take("rope.scaling.original_context_length")
    for name in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
        settings.expect(f"rope.scaling.{name}", 1.0)
    fast, slow = settings.take("rope.scaling.yarn_beta_fast"), settings.take("rope.scaling.yarn_beta_slow")
    if kind == "linear" or (kind == "none" and scale != 1.0):
        rope |= {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        rope |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        rope |= {name: beta for name, beta in (("beta_fast", fast), ("beta_slow", slow)) if beta is not None}
    elif kind != "none":
        raise settings.error(f"has the position encoding `{kind}`, which qpdsl does not read")
    if (factors := settings.header.tensors.get(_ROPE_FACTORS)) is not None:
        if kind != "none" or family.model_type != "llama":
            raise settings.error(f"has the tensor `{_ROPE_FACTORS}` beside another position encoding")
        rope |= _llama3(settings, factors, rope["rope_theta"], head_dim)
    return rope


def _llama3(settings: _Settings, stored: GGUFTensor, theta: float, head_dim: int) -> dict[str, Any]:
    """The numbers from which transformers computes these factors. Raises CheckpointError where it computes others."""
    half = head_dim // 2
    if stored.type != "F32" or stored.shape != (half,):
        raise settings.error(f"has a tensor `{stored.name}` of another shape than its heads need")
    with settings.header.path.open("rb") as file:
        file.seek(stored.start)
        factors = struct.unpack(f"<{half}f", file.read(stored.size))
    if all(factor == 1.0 for factor in factors):
        return {}
    factor = round(max(factors), 4)
    low, high, original = _LLAMA3.values()
    for index, given in enumerate(factors):
        turns = original * theta ** (-2 * index / head_dim) / (2 * math.pi)
        smooth = (turns - low) / (high - low)
        expected = 1.0 if turns > high else factor if turns < low else 1 / ((1 - smooth) / factor + smooth)
        if not abs(given - expected) <= 1e-4 * expected:
            raise settings.error(f"has factors of rotary frequencies (`{stored.name}`) that are not Llama 3's")
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _token(header: GGUFHeader, key: str) -> int | None:
    id = header.metadata.get(f"{_TOKENIZER}{key}")
    # Some converters write -1, as an unsigned number, for none.
    return id if isinstance(id, int) and 0 <= id < (1 << 31) else None


def _generation_config(header: GGUFHeader) -> dict[str, Any]:
    tokens = header.metadata.get(f"{_TOKENIZER}tokens", ())
    named = (_token(header, f"{name}_token_id") for name in ("eos", "eot", "eom"))
    ends = {id for id in named if id is not None} | {id for id, token in enumerate(tokens) if token in _ENDS}
    config = {f"{name}_token_id": id for name in ("bos", "pad") if (id := _token(header, _SPECIAL[name])) is not None}
    return {**config, "eos_token_id": sorted(ends)}


def _tensors(header: GGUFHeader, family: _Family) -> dict[str, StoredTensor]:
    """The tensors by transformers' names. Raises CheckpointError for one that has none."""
    found: dict[str, StoredTensor] = {}
    for name, tensor in header.tensors.items():
        stem, _, kind = name.rpartition(".")
        block, _, part = stem.removeprefix("blk.").partition(".")
        if stem.startswith("blk."):
            place = family.layer.get(part)
            new = f"model.layers.{block}.{place}.{kind}" if place and block.isdecimal() else ""
        else:
            part, new = stem, f"{_MODEL[stem]}.{kind}" if stem in _MODEL else ""
        if name == _ROPE_FACTORS:
            continue
        if not new or kind not in ("weight", "bias"):
            raise CheckpointError(
                f"`{header.path.name}` has the tensor `{name}`, which qpdsl does not know for `{header.architecture}`"
            )
        if tensor.type not in READ:
            raise CheckpointError(
                f"`{header.path.name}` holds `{name}` in the type {tensor.type}, which is not read; a file of the same "
                "model as Q4_K_M or Q8_0 is"
            )
        found[new] = StoredTensor(tensor, _change(family, part))
    return found


def _change(family: _Family, part: str) -> Change | None:
    if family.rotated_pairs and part in ("attn_q", "attn_k"):
        return "pairs"
    return "plus one" if family.adds_one and part.endswith("norm") else None

"""The families whose GGUF files are read, and a file of these as a Hugging Face model.

A GGUF file describes its model in llama.cpp's terms. llama.cpp's converter made them from a Hugging Face model; here is
the way back: `gguf_configs.py` for settings, `gguf_layout.py` for tensors. A setting or a tensor that is not known is
refused: it would change the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from qpdsl.executor.checkpoint import gguf_configs as configs
from qpdsl.executor.checkpoint import gguf_layout as layout
from qpdsl.executor.checkpoint.errors import CheckpointError
from qpdsl.executor.checkpoint.gguf_header import GGUFHeader, GGUFTensor, LongList, part_names
from qpdsl.executor.checkpoint.gguf_layout import LAYER, Names, StoredTensor, Undo, Undone, is_vector
from qpdsl.executor.checkpoint.gguf_settings import LONG_ROPE, ROPE_FACTORS, Settings

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
# Types of tensors that `executor/models/gguf_blocks.py` unpacks.
READ = frozenset({"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "TQ1_0", "TQ2_0"}) | {
    *(f"Q{bits}_K" for bits in range(2, 7)),
    *(f"IQ{kind}" for kind in ("1_S", "1_M", "2_XXS", "2_XS", "2_S", "3_XXS", "3_S", "4_NL", "4_XS")),
}
# Factors of rotary frequencies, which go into the configuration.
_NO_WEIGHTS = (ROPE_FACTORS, *LONG_ROPE.values())
_SPLIT_LATENT = ("attn_k_b.weight", "attn_v_b.weight")


@dataclass(frozen=True, slots=True)
class _Family:
    """How to read the files of one architecture.

    model_type: transformers' name
    layer:      the names of a layer's tensors
    own:        adds what the configuration has besides
    undone:     what llama.cpp's converter did to its tensors
    model:      the names of the other tensors
    common:     adds what many configurations have
    """

    model_type: str
    layer: Names = field(default_factory=lambda: LAYER)
    own: Callable[[Settings, dict[str, Any]], None] = configs.plain
    undone: Undone = layout.nothing
    model: Names = field(default_factory=lambda: layout.MODEL)
    common: Callable[[Settings, dict[str, Any]], None] = configs.decoder


_GEMMA = layout.PER_LAYER_MODEL
FAMILIES: Mapping[str, _Family] = {
    "arcee": _Family("arcee", own=configs.with_biases, undone=layout.pairs),
    "deepseek2": _Family("deepseek_v3", layout.DEEPSEEK, configs.deepseek, layout.latent, common=configs.plain),
    "dots1": _Family("dots1", layout.MOE_SHARED, configs.glm4_moe),
    "ernie4_5": _Family("ernie4_5"),
    "ernie4_5-moe": _Family("ernie4_5_moe", layout.ERNIE_MOE, configs.ernie_moe),
    "exaone4": _Family("exaone4", layout.TWO_AFTER, configs.exaone4),
    "falcon-h1": _Family("falcon_h1", layout.FALCON_H1, configs.falcon_h1, layout.ssm, layout.FALCON_H1_MODEL),
    "gemma": _Family("gemma", undone=layout.plus_one),
    "gemma2": _Family("gemma2", layout.FOUR_NORMS, configs.gemma2, layout.plus_one),
    "gemma3": _Family("gemma3_text", layout.FOUR_NORMS, configs.gemma3, layout.plus_one),
    "gemma3n": _Family("gemma3n_text", layout.GEMMA3N, configs.gemma3n, model=_GEMMA),
    "gemma4": _Family("gemma4_text", layout.GEMMA4, configs.gemma4, model=_GEMMA, common=configs.plain),
    "glm4": _Family("glm4", layout.GLM4, configs.query_biases, common=configs.part_rotary),
    "glm4moe": _Family("glm4_moe", layout.GLM4_MOE, configs.glm4_moe, common=configs.part_rotary),
    "gpt-oss": _Family("gpt_oss", layout.GPT_OSS, configs.gpt_oss, layout.alternating),
    "granite": _Family("granite", own=configs.granite, undone=layout.pairs),
    "granitehybrid": _Family("granitemoehybrid", layout.GRANITE_HYBRID, configs.granite_hybrid, layout.pairs),
    "granitemoe": _Family("granitemoe", layout.GRANITE_MOE, configs.granite_moe, layout.pairs),
    "hunyuan-dense": _Family("hunyuan_v1_dense", layout.HUNYUAN),
    "jamba": _Family("jamba", layout.JAMBA, configs.jamba, layout.ssm, layout.FALCON_H1_MODEL),
    "lfm2": _Family("lfm2", layout.LFM2, configs.lfm2, model=layout.LFM2_MODEL),
    "lfm2moe": _Family("lfm2_moe", layout.LFM2_MOE, configs.lfm2, model=layout.LFM2_MODEL),
    "llama": _Family("llama", layout.MIXTRAL, configs.llama, layout.pairs),
    "llama4": _Family("llama4_text", layout.LLAMA4, configs.llama4, layout.transposed_experts),
    "mamba": _Family("mamba", layout.MAMBA, configs.mamba, layout.ssm, layout.MAMBA_MODEL, configs.bare),
    "mamba2": _Family("mamba2", layout.MAMBA2, configs.mamba2, layout.ssm, layout.MAMBA_MODEL, configs.bare),
    "minicpm3": _Family("minicpm3", layout.MLA, configs.minicpm3, common=configs.plain),
    "minimax-m2": _Family("minimax_m2", layout.MINIMAX_M2, configs.minimax_m2, common=configs.part_rotary),
    "mistral3": _Family("ministral3", own=configs.mistral3, undone=layout.pairs),
    "nemotron_h": _Family("nemotron_h", layout.NEMOTRON_H, configs.nemotron_h, layout.pairs, layout.NEMOTRON_H_MODEL),
    "nemotron_h_moe": _Family(
        "nemotron_h", layout.NEMOTRON_H, configs.nemotron_h, layout.pairs, layout.NEMOTRON_H_MODEL
    ),
    "olmo2": _Family("olmo2", layout.TWO_AFTER, configs.olmo2),
    "olmoe": _Family("olmoe", layout.MIXTRAL, configs.olmoe),
    "phi3": _Family("phi3", layout.FUSED, configs.phi3, common=configs.part_rotary),
    "qwen2": _Family("qwen2"),
    "qwen2moe": _Family("qwen2_moe", layout.QWEN_MOE, configs.qwen_moe),
    "qwen2vl": _Family("qwen2", own=configs.qwen_vl),
    "qwen3": _Family("qwen3"),
    "qwen35": _Family("qwen3_5_text", layout.QWEN3_5, configs.delta, layout.qwen3_5, common=configs.part_rotary),
    "qwen35moe": _Family(
        "qwen3_5_moe_text", layout.QWEN3_5_MOE, configs.delta, layout.qwen3_5, common=configs.part_rotary
    ),
    "qwen3moe": _Family("qwen3_moe", layout.QWEN_MOE, configs.qwen_moe),
    "qwen3next": _Family("qwen3_next", layout.QWEN3_NEXT, configs.delta, layout.qwen3_next, common=configs.part_rotary),
    "qwen3vl": _Family("qwen3", own=configs.qwen_vl),
    "qwen3vlmoe": _Family("qwen3_moe", layout.QWEN_MOE, configs.qwen_vl),
    "seed_oss": _Family("seed_oss", layout.AFTER_ATTENTION, configs.seed_oss),
    "smollm3": _Family("smollm3", own=configs.with_biases, undone=layout.pairs),
    "starcoder2": _Family("starcoder2", layout.STARCODER2, configs.starcoder2),
}
# Encoders of models that see or hear.
_ENCODERS = ("clip", "mmproj")
_NO_HEAD_DIM = frozenset(
    {"arcee", "granite", "granitehybrid", "granitemoe", "lfm2", "lfm2moe", "olmo2", "olmoe", "phi3", "qwen2"}
    | {"qwen2moe", "qwen2vl", "smollm3", "starcoder2"}
)


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
        parts = [path.with_name(name) for name in part_names(path.name)]
        stats = [part.stat() for part in parts if part == path or part.exists()]
        return _read(path, *((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats))

    @property
    def kinds(self) -> str:
        """How the weights are stored, the most common way first, in words."""
        stored = {source.name: source for tensor in self.tensors.values() for source in tensor.sources}
        matrices = [tensor for tensor in stored.values() if len(tensor.shape) > 1 and "conv" not in tensor.name]
        layers = [tensor.type for tensor in matrices if tensor.name.startswith("blk.")]
        others = {"token_embd.weight": "embedding", "output.weight": "head"}
        ends = [f"{others[tensor.name]} {tensor.type}" for tensor in matrices if tensor.name in others]
        return ", ".join([*sorted(set(layers), key=lambda kind: (-layers.count(kind), kind)), *ends])


@lru_cache(maxsize=8)
def _read(path: Path, *state: tuple[int, int, int]) -> GGUFModel:
    """Reads a file. Commands look at a model several times; `state` is what would change with its files."""
    header = GGUFHeader.of(path)
    name, kind = path.name, header.metadata.get("general.type", "model")
    if kind in _ENCODERS or header.architecture in _ENCODERS:
        raise CheckpointError(
            f"`{name}` is the part of a model that sees or hears; name the file of its language model, which runs alone"
        )
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
    if header.metadata.get(f"{_TOKENIZER}model") is None or not isinstance(tokens, tuple | LongList):
        raise CheckpointError(f"`{name}` has no tokenizer")
    config = _config(header, family)
    return GGUFModel(header, config, _generation_config(header), _tensors(header, family, config))


def _config(header: GGUFHeader, family: _Family) -> dict[str, Any]:
    settings = Settings(header)
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise settings.error("has no embeddings (`token_embd.weight`)")
    hidden, layers = settings.whole("embedding_length"), settings.whole("block_count")
    if layers > len(header.tensors):
        raise settings.error(f"has {len(header.tensors)} tensors, too few for {layers:,} layers")
    # Layers that draft tokens, behind the others, are no part of transformers' models.
    drafts = settings.take("nextn_predict_layers", 0)
    if not isinstance(drafts, int) or not 0 <= drafts < layers:
        raise settings.error(f"has `{drafts}` for the setting `nextn_predict_layers`")
    epsilon = settings.take("attention.layer_norm_epsilon")
    config: dict[str, Any] = {
        "model_type": family.model_type,
        "dtype": "float32",
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": layers - drafts,
        "rms_norm_eps": settings.real("attention.layer_norm_rms_epsilon", epsilon),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **{f"{name}_token_id": _token(header, key) for name, key in _SPECIAL.items()},
    }
    family.common(settings, config)
    family.own(settings, config)
    if header.architecture in _NO_HEAD_DIM and config["head_dim"] * config["num_attention_heads"] != hidden:
        dim = config["head_dim"]
        raise settings.error(f"has heads of {dim} numbers, which transformers' models of this family cannot have")
    for name in ("expert_count", "expert_used_count", "attention.sliding_window"):
        settings.expect(name, 0)
    settings.expect("attention.causal", True)
    settings.take("vocab_size")
    settings.take("rope.scaling.finetuned")
    settings.done()
    return config


_SPECIAL = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "padding_token_id"}


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


def _tensors(header: GGUFHeader, family: _Family, config: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """The tensors by transformers' names. Raises CheckpointError for one that has none."""
    sources: dict[str, list[tuple[str, GGUFTensor]]] = {}
    layers = family.model["token_embd"].rpartition(".")[0] + ".layers"
    order = {name: index for index, name in enumerate(family.layer)}
    for name, tensor in header.tensors.items():
        if name in _NO_WEIGHTS:
            continue
        block, part = _block(name)
        if (
            block is not None
            and block >= config["num_hidden_layers"]
            and block < header.metadata[f"{header.architecture}.block_count"]
        ):
            continue
        # Files of a time had latent attention in both forms.
        if part in _SPLIT_LATENT and f"blk.{block}.attn_kv_b.weight" in header.tensors:
            continue
        found = _place(part, family.model if block is None else family.layer)
        if found is None:
            raise CheckpointError(
                f"`{header.path.name}` has the tensor `{name}`, which qpdsl does not know for `{header.architecture}`"
            )
        if tensor.type not in READ:
            raise CheckpointError(
                f"`{header.path.name}` holds `{name}` in the type {tensor.type}, which is not read; a file of the same "
                "model as Q4_K_M or Q8_0 is"
            )
        place = found if block is None else f"{layers}.{block}.{found}"
        sources.setdefault(place, []).append((part, tensor))
    tensors: dict[str, StoredTensor] = {}
    for place, parts in sources.items():
        parts.sort(key=lambda each: order.get(each[0], order.get(each[0].rpartition(".")[0], 0)))
        part, first = parts[0]
        outputs = first.shape[-1] if is_vector(first) else first.shape[-2]
        try:
            undo = family.undone(part.removesuffix(".weight").removesuffix(".bias"), outputs, config)
        except (ArithmeticError, ValueError, TypeError) as error:
            raise CheckpointError(f"`{header.path.name}` has a `{first.name}` that its settings do not fit") from error
        stored = tuple(tensor for _, tensor in parts)
        if "#" in place:
            stacked = range(first.shape[0])
            tensors |= {place.replace("#", str(one)): StoredTensor(stored, Undo(part=one)) for one in stacked}
        else:
            tensors[place] = StoredTensor(stored, undo)
    return tensors


def _block(name: str) -> tuple[int | None, str]:
    """The layer that a tensor is in, None for none, and its name there."""
    start, _, rest = name.partition(".")
    number, _, part = rest.partition(".")
    return (int(number), part) if start == "blk" and number.isdecimal() and part else (None, name)


def _place(part: str, names: Names) -> str | None:
    """Where a tensor of this name belongs in a layer, or in the model; None where it is not known."""
    if part in names:
        return names[part]
    stem, _, kind = part.rpartition(".")
    return f"{names[stem]}.{kind}" if stem in names and kind in ("weight", "bias") else None

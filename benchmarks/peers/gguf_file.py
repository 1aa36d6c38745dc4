"""GGUF files for llama.cpp: of a transformers model's weights, and of another file's in another type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from transformers import PretrainedConfig, PreTrainedModel

from qpdsl.executor.checkpoint.gguf_families import FAMILIES
from qpdsl.executor.checkpoint.gguf_layout import Names, Undo

# llama.cpp's names of the families that are written, by transformers' model types.
_ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3_5_text": "qwen35"}


def write_gguf(model: PreTrainedModel, file: Path, tokens: Sequence[str] | None = None) -> None:
    """Writes weights in float32, and the tokenizer of `subjects.bytes_tokenizer` with these tokens, or none.

    Names and orders are those that qpdsl reads (`executor/checkpoint/gguf_layout.py`), the other way round. Raises
    ValueError for a model that is neither Llama, Qwen2 nor Qwen3.5.
    """
    config = model.config
    architecture = _ARCHITECTURES.get(config.model_type)
    if architecture is None:
        raise ValueError(f"no GGUF is written of {config.model_type}")
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    writer = GGUFWriter(file, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(int(dim * rope.get("partial_rotary_factor", 1)))
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if architecture == "qwen35":
        _add_delta(writer, config)
    if tokens is None:
        writer.add_tokenizer_model("no_vocab")
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
        writer.add_token_merges([f"{tokens[0]} {tokens[0]}"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    family, settings = FAMILIES[architecture], config.to_dict()
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        own = _named(name, family.model, family.layer)
        part = own.split(".")[2 if own.startswith("blk.") else 0]
        values = _stored(tensor.float(), family.undone(part, tensor.shape[0], settings))
        writer.add_tensor(own, np.ascontiguousarray(values.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_delta(writer: GGUFWriter, config: PretrainedConfig) -> None:
    """The settings of gated delta nets. Raises ValueError where layers that attend are in no regular order."""
    every = config.layer_types.index("full_attention") + 1
    if any((kind == "full_attention") == bool((at + 1) % every) for at, kind in enumerate(config.layer_types)):
        raise ValueError("llama.cpp takes layers that attend at equal distances")
    writer.add_full_attention_interval(every)
    # Of text alone, the sections of its positions are all the same.
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)


def _stored(weight: torch.Tensor, undo: Undo) -> torch.Tensor:
    """What a file has for a weight of the model, where reading it undoes `undo`."""
    if undo.values is not None:
        weight = weight + 1 if undo.values == "minus one" else -weight.exp()
    for dim, order in enumerate((undo.outputs, undo.inputs)):
        if order is not None:
            weight = weight.index_select(dim, torch.from_numpy(order).argsort())
    return weight.squeeze(1) if weight.dim() == 3 else weight


def _named(name: str, outer: Names, layer: Names) -> str:
    """The name in a file of a tensor of the model."""
    _, of_layer, rest = name.partition(".layers.")
    number, _, place = rest.partition(".")
    names = {place: own for own, place in (layer if of_layer else outer).items()}
    place = place if of_layer else name
    whole, _, kind = place.rpartition(".")
    own = names.get(place) or f"{names[whole]}.{kind}"
    return f"blk.{number}.{own}" if of_layer else own


def recoded(source: Path, target: Path, kind: GGMLQuantizationType) -> None:
    """Writes the file anew with its matrices in another type: of their values, as gguf's own code reads and makes them.

    Vectors stay in float32, and so do matrices whose rows are no whole number of the type's blocks.
    """
    reader = GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        sub_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub_type)
    block = gguf.GGML_QUANT_SIZES[kind][0]
    for tensor in reader.tensors:
        values = _floats(tensor.data, tensor.tensor_type)
        if values.ndim == 2 and values.shape[1] % block == 0:
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def matrix_bytes(file: Path) -> int:
    """Bytes of the matrices that a decode step reads: all, but for the embeddings where the head is another matrix."""
    tensors = {tensor.name: tensor for tensor in GGUFReader(file).tensors}
    embeddings = "token_embd.weight" if "output.weight" in tensors else None
    return sum(int(t.n_bytes) for name, t in tensors.items() if len(t.shape) == 2 and name != embeddings)


def _floats(data: npt.NDArray[np.generic], kind: GGMLQuantizationType) -> npt.NDArray[np.float32]:
    if kind == GGMLQuantizationType.F32:
        return np.asarray(data, dtype=np.float32)
    values: npt.NDArray[np.float32] = gguf.quants.dequantize(data, kind)
    return values

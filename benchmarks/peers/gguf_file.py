"""GGUF files for llama.cpp: of a transformers model's weights, and of another file's in another type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from transformers import PreTrainedModel

# GGUF names of the parts of a layer, and of what is outside the layers.
_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_gguf(model: PreTrainedModel, file: Path, tokens: Sequence[str] | None = None) -> None:
    """Writes weights in float32, and the tokenizer of `subjects.bytes_tokenizer` with these tokens, or none.

    Raises ValueError for a model that is neither Llama nor Qwen2.
    """
    config = model.config
    if config.model_type not in ("llama", "qwen2"):
        raise ValueError(f"no GGUF is written of {config.model_type}")
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer = GGUFWriter(file, config.model_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if tokens is None:
        writer.add_tokenizer_model("no_vocab")
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
        writer.add_token_merges([f"{tokens[0]} {tokens[0]}"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weight = tensor.float()
        # llama.cpp turns neighbouring pairs of a Llama head, transformers turns its two halves.
        if config.model_type == "llama" and ".q_proj." in name:
            weight = _paired(weight, heads)
        if config.model_type == "llama" and ".k_proj." in name:
            weight = _paired(weight, kv_heads)
        writer.add_tensor(_renamed(name), np.ascontiguousarray(weight.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head from (half, pair) order to (pair, half)."""
    rows = weight.shape[0] // heads
    return weight.view(heads, 2, rows // 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _renamed(name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    _, _, layer, rest = name.split(".", 3)
    for theirs, ours in _LAYER.items():
        if rest == theirs or rest.startswith(theirs + "."):
            return f"blk.{layer}.{ours}{rest.removeprefix(theirs)}"
    raise ValueError(f"no GGUF name is known for {name}")


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

"""A transformers model from the tensors of a GGUF file, whose blocks stay as they are.

Blocks become whole numbers with scales: nothing is turned into floats, and no value changes. The layouts are those of
ggml (`ggml-common.h`; `ggml-quants.c` has the arithmetic). Types of five and six bits become eight-bit numbers. Types
whose numbers are points of a grid (IQ1 to IQ3) have no such form and are not read.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from qpdsl.executor.checkpoint.errors import CheckpointError
from qpdsl.executor.checkpoint.gguf_families import GGUFModel, StoredTensor
from qpdsl.executor.checkpoint.gguf_header import GGUFTensor
from qpdsl.executor.kernels.data.weights import FloatWeight, GroupedWeight, Weight, no_number, stacked
from qpdsl.executor.kernels.linear import StoredEmbedding, StoredLinear

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_EMBEDDING, _HEAD = "model.embed_tokens", "lm_head"
# So many weights are unpacked at a time, to stay in the caches.
_AT_ONCE = 1 << 20
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# What the four bits of IQ4_NL and IQ4_XS stand for.
_LEVELS = torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=torch.int8)


@torch.inference_mode(False)
@torch.no_grad()
def built(gguf: GGUFModel, config: PretrainedConfig, dtype: torch.dtype | None, device: str) -> PreTrainedModel:
    """The model that `config` describes, with the tensors of the file, on `device`.

    With a `dtype` its weights become floats of this type. Without one they stay as they are stored, norms and biases
    are float32, and so is what it computes. Raises CheckpointError where a tensor is missing, has another shape, has no
    place, or holds what is no number.
    """
    from transformers import AutoModelForCausalLM, GenerationConfig

    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype or torch.float32)
    tensors = StoredTensors(gguf)
    _check_places(tensors, model)
    if dtype is None:
        _keep_stored(model, tensors)
    for name, parameter in [*model.named_parameters()]:
        if name != f"{_HEAD}.weight" or not config.tie_word_embeddings:
            values = tensors.floats(name, parameter.shape).to(dtype or torch.float32)
            _set(model, name, torch.nn.Parameter(values, requires_grad=False))
    if dtype is not None and config.tie_word_embeddings:
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    _make_buffers(model)
    model.generation_config = GenerationConfig(**gguf.generation_config)
    return model.eval().to(device)


class StoredTensors:
    """The tensors of a file, by transformers' names."""

    def __init__(self, gguf: GGUFModel) -> None:
        self.gguf = gguf
        self.named = gguf.tensors
        # A private map can be written to, which torch asks for, and is not.
        with gguf.header.path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._data = torch.from_numpy(np.frombuffer(self._map, dtype=np.uint8))

    def weight(self, name: str, shape: torch.Size) -> Weight:
        """The weights [out, in] of a linear layer or an embedding. Raises CheckpointError."""
        tensor = self._tensor(name, shape)
        found = self._read(tensor.stored, *tensor.stored.shape)
        return found.select(self._halves(name, shape[0])) if tensor.change == "pairs" else found

    def floats(self, name: str, shape: torch.Size) -> torch.Tensor:
        """Any tensor as float32. Raises CheckpointError."""
        if len(shape) == 2:
            return self.weight(name, shape).dequantized()
        tensor = self._tensor(name, shape)
        values = self._read(tensor.stored, 1, shape[0]).dequantized()[0]
        if tensor.change == "pairs":
            return values[self._halves(name, len(values))]
        return values - 1 if tensor.change == "plus one" else values

    def _read(self, stored: GGUFTensor, outputs: int, inputs: int) -> Weight:
        end = stored.start + stored.size
        found = weight(stored.type, self._data[stored.start : end], outputs, inputs)
        # It is read once, and need not stay in this process.
        first, size = -(-stored.start // mmap.PAGESIZE), end // mmap.PAGESIZE
        if size > first and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (size - first) * mmap.PAGESIZE)
        if (kind := no_number(found)) is not None:
            raise self._error(f"`{stored.name}` holds {kind}; its weights are damaged")
        return found

    def _tensor(self, name: str, shape: torch.Size) -> StoredTensor:
        tensor = self.named.get(name)
        if tensor is None:
            raise self._error(f"has no tensor for `{name}` of its architecture")
        if tensor.stored.shape != tuple(shape):
            given, wanted = ("×".join(map(str, size)) for size in (tensor.stored.shape, shape))
            raise self._error(f"`{tensor.stored.name}` has the shape {given}, and its settings make it {wanted}")
        return tensor

    def _halves(self, name: str, rows: int) -> torch.Tensor:
        """Where the rows of queries or keys lie in the file, in transformers' order."""
        config = self.gguf.config
        heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        return torch.arange(rows).view(heads, -1, 2).transpose(1, 2).flatten()

    def _error(self, what: str) -> CheckpointError:
        return CheckpointError(f"`{self.gguf.header.path.name}`: {what}" if what[0] == "`" else what)


def _check_places(tensors: StoredTensors, model: PreTrainedModel) -> None:
    """Raises CheckpointError for a tensor that the model has no place for."""
    places = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name, tensor in tensors.named.items():
        if name not in places:
            raise CheckpointError(
                f"its file has the tensor `{tensor.stored.name}`, for which {type(model).__name__} has no place"
            )


def _keep_stored(model: PreTrainedModel, tensors: StoredTensors) -> None:
    """Puts layers that hold the stored weights in the place of the linear ones and of the embedding."""
    kept: dict[str, Weight] = {}
    for name, module in [*model.named_modules()]:
        if name == _EMBEDDING:
            kept[name] = tensors.weight(f"{name}.weight", module.weight.shape)
            # Gemma's embeddings are multiplied in their own module.
            scale = torch.tensor(getattr(module, "scalar_embed_scale", 1.0)).item()
            model.set_submodule(name, StoredEmbedding(kept[name], scale))
        elif type(module) is torch.nn.Linear:
            tied = name == _HEAD and model.config.tie_word_embeddings
            stored = kept[_EMBEDDING] if tied else tensors.weight(f"{name}.weight", module.weight.shape)
            bias = None if module.bias is None else tensors.floats(f"{name}.bias", module.bias.shape)
            model.set_submodule(name, StoredLinear(stored, bias))


def _make_buffers(model: PreTrainedModel) -> None:
    """Computes the buffers that no file has, such as rotary frequencies, as transformers does when it loads a model."""
    for module in model.modules():
        empty = {name: buffer for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta}
        for name, buffer in empty.items():
            module._buffers[name] = torch.empty_like(buffer, device="cpu")
        if empty:
            # Parameters of the same module are there already.
            held = dict(module.named_parameters(recurse=False))
            before = {name: parameter.detach().clone() for name, parameter in held.items()}
            model._init_weights(module)
            for name, parameter in held.items():
                parameter.copy_(before[name])


def _set(model: PreTrainedModel, name: str, parameter: torch.nn.Parameter) -> None:
    owner, _, own = name.rpartition(".")
    setattr(model.get_submodule(owner), own, parameter)


def weight(kind: str, data: torch.Tensor, outputs: int, inputs: int) -> Weight:
    """The weights [out, in] of a tensor of the type `kind`, whose bytes are `data` uint8. They share no memory with it.

    Raises KeyError for a type that is not read.
    """
    rows = data.view(outputs, -1)
    if kind in _FLOATS:
        return FloatWeight(rows.clone().view(_FLOATS[kind]))
    size, unpack = _BLOCKS[kind]
    count = max(1, _AT_ONCE // inputs)
    starts = range(0, outputs, count)
    shape = (-1, rows.shape[1] // size, size)
    if len(starts) == 1:
        return unpack(rows.view(shape))
    return stacked((unpack(rows[start : start + count].view(shape)) for start in starts), outputs)


# Each takes the bytes of blocks, uint8 [out, blocks, bytes].
def _q4_0(data: torch.Tensor) -> GroupedWeight:
    scales = _half(data, 0)
    return GroupedWeight(_flat(_nibbles(data[..., 2:], 16)), 4, scales, -8 * scales, 32)


def _q4_1(data: torch.Tensor) -> GroupedWeight:
    return GroupedWeight(_flat(_nibbles(data[..., 4:], 16)), 4, _half(data, 0), _half(data, 2), 32)


def _q5_0(data: torch.Tensor) -> GroupedWeight:
    codes = _nibbles(data[..., 6:], 16) | _bits_in_order(data[..., 2:6]) << 4
    return GroupedWeight(_flat(codes) - 16, 8, _half(data, 0), None, 32)


def _q5_1(data: torch.Tensor) -> GroupedWeight:
    codes = _nibbles(data[..., 8:], 16) | _bits_in_order(data[..., 4:8]) << 4
    return GroupedWeight(_flat(codes), 8, _half(data, 0), _half(data, 2), 32)


def _q8_0(data: torch.Tensor) -> GroupedWeight:
    return GroupedWeight(_flat(data[..., 2:]), 8, _half(data, 0), None, 32)


def _q2_k(data: torch.Tensor) -> GroupedWeight:
    coded, codes = data[..., :16], _fields(data[..., 16:80], 32, 2, 4)
    scales, offsets = _half(data, 80), -_half(data, 82)
    return GroupedWeight(_flat(codes), 4, scales, offsets, 16, _flat(coded & 15), _flat(coded >> 4))


def _q3_k(data: torch.Tensor) -> GroupedWeight:
    # The third bit says that 4 is not to be taken off.
    codes = _fields(data[..., 32:96], 32, 2, 4) | _fields(data[..., :32], 32, 1, 8) << 2
    low, high = _nibbles(data[..., 96:104], 8), _fields(data[..., 104:108], 4, 2, 4)
    return GroupedWeight(_flat(codes) - 4, 8, _half(data, 108), None, 16, _flat(low | high << 4) - 32)


def _q4_k(data: torch.Tensor) -> GroupedWeight:
    scale_codes, offset_codes = _six_bits(data[..., 4:16])
    codes = _flat(_nibbles(data[..., 16:], 32))
    return GroupedWeight(codes, 4, _half(data, 0), -_half(data, 2), 32, scale_codes, offset_codes)


def _q5_k(data: torch.Tensor) -> GroupedWeight:
    scale_codes, offset_codes = _six_bits(data[..., 4:16])
    codes = _flat(_nibbles(data[..., 48:], 32) | _fields(data[..., 16:48], 32, 1, 8) << 4)
    return GroupedWeight(codes, 8, _half(data, 0), -_half(data, 2), 32, scale_codes, offset_codes)


def _q6_k(data: torch.Tensor) -> GroupedWeight:
    codes = _nibbles(data[..., :128], 64) | _fields(data[..., 128:192], 32, 2, 4) << 4
    return GroupedWeight(_flat(codes) - 32, 8, _half(data, 208), None, 16, _flat(data[..., 192:208]))


def _iq4_nl(data: torch.Tensor) -> GroupedWeight:
    return GroupedWeight(_levels(_nibbles(data[..., 2:], 16)), 8, _half(data, 0), None, 32)


def _iq4_xs(data: torch.Tensor) -> GroupedWeight:
    low = torch.stack((data[..., 4:8] & 15, data[..., 4:8] >> 4), dim=-1).flatten(-2)
    high = torch.stack([data[..., 2:4] >> 2 * place & 3 for place in range(4)], dim=-1).flatten(-2)
    codes = _levels(_nibbles(data[..., 8:], 16))
    return GroupedWeight(codes, 8, _half(data, 0), None, 32, _flat(low | high << 4) - 32)


# By type: the bytes of a block, and what unpacks blocks.
_BLOCKS: Mapping[str, tuple[int, Callable[[torch.Tensor], GroupedWeight]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
    "IQ4_NL": (18, _iq4_nl),
    "IQ4_XS": (136, _iq4_xs),
}


TYPES = frozenset({*_FLOATS, *_BLOCKS})


def _half(data: torch.Tensor, place: int) -> torch.Tensor:
    """The float16 at a place of each block, as float32 [out, blocks]."""
    return data[..., place : place + 2].contiguous().view(torch.float16).squeeze(-1).float()


def _fields(data: torch.Tensor, run: int, bits: int, count: int) -> torch.Tensor:
    """Runs of `run` bytes have `count` numbers of `bits` in each byte: all the first ones, then all the second ones…"""
    runs = data.reshape(*data.shape[:-1], -1, run)
    mask = (1 << bits) - 1
    return torch.stack([runs >> bits * place & mask for place in range(count)], dim=-2).flatten(-3)


def _nibbles(data: torch.Tensor, run: int) -> torch.Tensor:
    return _fields(data, run, 4, 2)


def _bits_in_order(data: torch.Tensor) -> torch.Tensor:
    """The bits of bytes, the lowest first."""
    return torch.stack([data >> place & 1 for place in range(8)], dim=-1).flatten(-2)


def _six_bits(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight scales and eight offsets of six bits, in twelve bytes: int8 [out, groups] both."""
    scales, offsets, rest = data[..., :4], data[..., 4:8], data[..., 8:]
    last_scales = rest & 15 | scales >> 2 & 48
    last_offsets = rest >> 4 | offsets >> 2 & 48
    return _flat(torch.cat((scales & 63, last_scales), -1)), _flat(torch.cat((offsets & 63, last_offsets), -1))


def _levels(codes: torch.Tensor) -> torch.Tensor:
    return _LEVELS[_flat(codes).int()]


def _flat(codes: torch.Tensor) -> torch.Tensor:
    """int8 [out, numbers] of uint8 [out, blocks, numbers]."""
    return codes.flatten(1).view(torch.int8)

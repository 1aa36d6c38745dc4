"""A transformers model from the tensors of a GGUF file, whose blocks stay as they are (`gguf_blocks.py`)."""

from __future__ import annotations

import mmap
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from qpdsl.executor.checkpoint.errors import CheckpointError
from qpdsl.executor.checkpoint.gguf_families import GGUFModel
from qpdsl.executor.checkpoint.gguf_header import GGUFTensor
from qpdsl.executor.checkpoint.gguf_layout import StoredTensor, is_vector
from qpdsl.executor.kernels.data.weights import (
    FloatWeight,
    LateFloatWeight,
    LateGroupedWeight,
    Weight,
    joined,
    no_number,
)
from qpdsl.executor.kernels.linear import StoredEmbedding, StoredExperts, StoredLinear
from qpdsl.executor.models.gguf_blocks import weight

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_HEAD = "lm_head"
# Mamba's code multiplies by these weights itself.
_TAKEN_APART = ".dt_proj"
# Parts of a module of experts that stay as they are stored.
_OF_EXPERTS = ("gate_up_proj", "up_proj", "down_proj")


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
            # What is float32 in a model of another type stays so: states need it.
            own = parameter.dtype if parameter.dtype == torch.float32 else dtype or torch.float32
            _set(model, name, torch.nn.Parameter(tensors.floats(name, parameter.shape).to(own), requires_grad=False))
    if dtype is not None and config.tie_word_embeddings:
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    _make_buffers(model)
    for name in _saved_buffers(model) & tensors.named.keys():
        buffer = model.get_buffer(name)
        buffer.copy_(tensors.floats(name, buffer.shape))
    model.generation_config = GenerationConfig(**gguf.generation_config)
    return model.eval().to(device)


class StoredTensors:
    """The tensors of a file, by transformers' names."""

    def __init__(self, gguf: GGUFModel) -> None:
        self.gguf = gguf
        self.named = gguf.tensors
        self._maps: dict[Path, mmap.mmap] = {}

    def weight(self, name: str, shape: torch.Size) -> Weight:
        """The weights [out, in] of a linear layer or an embedding. Raises CheckpointError."""
        tensor = self._tensor(name, shape)
        (found,) = self._matrices(tensor)
        return found

    def late_weight(self, name: str, shape: torch.Size) -> Weight:
        """The same, read late if it is a matrix of the file as it lies there. Raises CheckpointError, then or now."""
        tensor = self._tensor(name, shape)
        source, undo = tensor.sources[0], tensor.undo
        whole = len(tensor.sources) == 1 and len(source.shape) == 2 and not undo.latent
        if not whole or undo.part is not None or undo.inputs is not None:
            return self.weight(name, shape)
        row = self._bytes(source)[: source.size // source.shape[0]]
        form = weight(source.type, row, 1, source.shape[1])
        late = LateFloatWeight if isinstance(form, FloatWeight) else LateGroupedWeight
        return late(form, source.shape[0], partial(self.weight, name, shape))

    def experts(self, name: str, shape: torch.Size) -> list[Weight]:
        """The weights [out, in] of each of some experts; `shape` is that of all. Raises CheckpointError."""
        return self._matrices(self._tensor(name, shape))

    def floats(self, name: str, shape: torch.Size) -> torch.Tensor:
        """Any tensor as float32. Raises CheckpointError."""
        tensor = self._tensor(name, shape)
        values = torch.stack([matrix.dequantized() for matrix in self._matrices(tensor)])
        if tensor.undo.values is not None:
            values = values - 1 if tensor.undo.values == "minus one" else (-values).log()
        if tensor.undo.transposed and not is_vector(tensor.sources[0]):
            values = values.transpose(1, 2)
        return values.reshape(shape)

    def _matrices(self, tensor: StoredTensor) -> list[Weight]:
        """The matrices [out, in] of a tensor in the model's order, one but where there are several experts.

        A vector is a matrix with one input, and one of several dimensions is one with all but the last as outputs.
        """
        undo = tensor.undo
        if undo.latent:
            return [self._latent(tensor)]
        parts = [self._parts(source) for source in tensor.sources]
        if undo.part is not None:
            return [parts[0][undo.part]]
        found = [_together([part[expert] for part in parts]) for expert in range(len(parts[0]))]
        if undo.outputs is not None:
            order = torch.from_numpy(undo.outputs)
            found = [matrix.select(order) for matrix in found]
        if undo.inputs is not None:
            found = [_with_inputs(matrix, torch.from_numpy(undo.inputs)) for matrix in found]
        return found

    def _parts(self, source: GGUFTensor) -> list[Weight]:
        """The matrices of a tensor of the file."""
        if is_vector(source):
            rows = self._read(source).dequantized()
            return [FloatWeight(row[:, None]) for row in rows]
        whole, outputs = self._read(source), source.shape[-2]
        return [whole.select(slice(start, start + outputs)) for start in range(0, whole.shape[0], outputs)]

    def _latent(self, tensor: StoredTensor) -> Weight:
        """Keys [H, r, k] and values [H, v, r] as one matrix [H · (k + v), r]; turned round, blocks are taken apart."""
        keys, values = (torch.stack([part.dequantized() for part in self._parts(source)]) for source in tensor.sources)
        return FloatWeight(torch.cat((keys.transpose(1, 2), values), dim=1).flatten(0, 1))

    def _read(self, stored: GGUFTensor) -> Weight:
        """A tensor of the file as a matrix [out, in]."""
        found = weight(stored.type, self._bytes(stored), prod(stored.shape[:-1]), stored.shape[-1])
        # It is read once as a rule, and its pages need not stay in this process.
        end = stored.start + stored.size
        first, last = -(-stored.start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first and hasattr(mmap, "MADV_DONTNEED"):
            self._maps[stored.path].madvise(mmap.MADV_DONTNEED, first, last - first)
        if (kind := no_number(found)) is not None:
            raise self._error(f"`{stored.name}` holds {kind}; its weights are damaged")
        return found

    def _bytes(self, stored: GGUFTensor) -> torch.Tensor:
        """A tensor where it lies in the file, uint8."""
        if stored.path not in self._maps:
            with stored.path.open("rb") as file:
                # A private map can be written to, which torch asks for, and is not.
                self._maps[stored.path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        data = torch.from_numpy(np.frombuffer(self._maps[stored.path], dtype=np.uint8))
        return data[stored.start : stored.start + stored.size]

    def _tensor(self, name: str, shape: torch.Size) -> StoredTensor:
        tensor = self.named.get(name)
        if tensor is None:
            raise self._error(f"has no tensor for `{name}` of its architecture")
        same = prod(tensor.shape) == prod(shape) if len(shape) == 1 else _squeezed(tensor.shape) == _squeezed(shape)
        if not same:
            given, wanted = ("×".join(map(str, size)) for size in (tensor.shape, shape))
            raise self._error(f"`{tensor.sources[0].name}` has the shape {given}, and its settings make it {wanted}")
        return tensor

    def _error(self, what: str) -> CheckpointError:
        return CheckpointError(f"`{self.gguf.header.path.name}`: {what}" if what[0] == "`" else what)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _together(parts: list[Weight]) -> Weight:
    """Weights as one, whose outputs follow each other; as floats where some are."""
    try:
        return joined(parts)
    except ValueError:
        return FloatWeight(torch.cat([part.dequantized() for part in parts]))


def _with_inputs(matrix: Weight, inputs: torch.Tensor) -> Weight:
    """The inputs in another order; as floats where it takes groups apart."""
    try:
        return matrix.select_inputs(inputs)
    except ValueError:
        return FloatWeight(matrix.dequantized()[:, inputs])


def _saved_buffers(model: PreTrainedModel) -> set[str]:
    """Buffers that a checkpoint has, such as what is added to the scores of experts."""
    return set(model.state_dict()) - {name for name, _ in model.named_parameters(remove_duplicate=False)}


def _check_places(tensors: StoredTensors, model: PreTrainedModel) -> None:
    """Raises CheckpointError for a tensor that the model has no place for, and for a buffer that has none."""
    saved = _saved_buffers(model)
    places = {name for name, _ in model.named_parameters(remove_duplicate=False)} | saved
    for name, tensor in tensors.named.items():
        if name not in places:
            what = f"its file has the tensor `{tensor.sources[0].name}`, for which {type(model).__name__} has no place"
            raise CheckpointError(what)


def _keep_stored(model: PreTrainedModel, tensors: StoredTensors) -> None:
    """Puts layers that hold the stored weights in the place of linear ones, embeddings and experts."""
    embedding = model.get_input_embeddings()
    kept: dict[int, Weight] = {}
    for name, module in [*model.named_modules()]:
        if isinstance(module, torch.nn.Embedding):
            kept[id(module)] = tensors.weight(f"{name}.weight", module.weight.shape)
            # Gemma's embeddings are multiplied in their own module.
            scale = torch.tensor(getattr(module, "scalar_embed_scale", 1.0)).item()
            model.set_submodule(name, StoredEmbedding(kept[id(module)], scale))
        elif type(module) is torch.nn.Linear and not name.endswith(_TAKEN_APART):
            tied = name == _HEAD and model.config.tie_word_embeddings
            stored = kept[id(embedding)] if tied else tensors.weight(f"{name}.weight", module.weight.shape)
            bias = None if module.bias is None else tensors.floats(f"{name}.bias", module.bias.shape)
            model.set_submodule(name, StoredLinear(stored, bias))
        elif StoredExperts.fits(module):
            _keep_experts(name, module, model, tensors)


def _keep_experts(name: str, module: Any, model: PreTrainedModel, tensors: StoredTensors) -> None:
    own = {part: parameter for part in _OF_EXPERTS if (parameter := getattr(module, part, None)) is not None}
    stored = {part: tensors.experts(f"{name}.{part}", parameter.shape) for part, parameter in own.items()}
    biases = {
        f"{part}_bias": tensors.floats(f"{name}.{part}_bias", getattr(module, f"{part}_bias").shape)
        for part in own
        if module.has_bias
    }
    model.set_submodule(name, StoredExperts(module, stored, biases))


def _make_buffers(model: PreTrainedModel) -> None:
    """Computes the buffers that no file has, such as rotary frequencies, as transformers does when it loads a model.

    Raises CheckpointError where it has no code for one.
    """
    from transformers import PreTrainedModel

    made: list[tuple[torch.nn.Module, torch.nn.Module]] = []
    owners = {"": model}
    for name, module in model.named_modules():
        owners[name] = module if isinstance(module, PreTrainedModel) else owners[name.rpartition(".")[0]]
        empty = {name: buffer for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta}
        for own, buffer in empty.items():
            module._buffers[own] = torch.empty_like(buffer, device="cpu")
            if buffer.is_floating_point():
                module._buffers[own].fill_(torch.nan)
        # A whole model may set buffers of its layers.
        if empty or isinstance(module, PreTrainedModel):
            made.append((owners[name], module))
    for owner, module in made:
        # Parameters of the same module are there already.
        held = dict(module.named_parameters(recurse=False))
        before = {name: parameter.detach().clone() for name, parameter in held.items()}
        initialize: Any = owner._init_weights
        initialize(module)
        for name, parameter in held.items():
            parameter.copy_(before[name])
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point() and buffer.isnan().any():
            raise CheckpointError(f"transformers does not say how `{name}` is made")


def _set(model: PreTrainedModel, name: str, parameter: torch.nn.Parameter) -> None:
    owner, _, own = name.rpartition(".")
    setattr(model.get_submodule(owner), own, parameter)

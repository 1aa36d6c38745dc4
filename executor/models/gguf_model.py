"""A transformers model from the tensors of a GGUF file, whose blocks stay as they are."""

from __future__ import annotations

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel

from qpdsl.executor.checkpoint.errors import CheckpointError
from qpdsl.executor.checkpoint.gguf_families import GGUFModel, StoredTensor
from qpdsl.executor.kernels.data.weights import Weight, no_number
from qpdsl.executor.kernels.stored_linear import StoredEmbedding, StoredLinear
from qpdsl.executor.models.gguf_blocks import weight

_EMBEDDING, _HEAD = "model.embed_tokens", "lm_head"


@torch.inference_mode(False)
@torch.no_grad()
def built(gguf: GGUFModel, config: PretrainedConfig, dtype: torch.dtype | None, device: str) -> PreTrainedModel:
    """The model that `config` describes, with the tensors of the file, on `device`.

    With a `dtype` its weights become floats of this type. Without one they stay as they are stored, norms and biases
    are float32, and so is what it computes. Raises CheckpointError where a tensor is missing, has another shape, has no
    place, or holds what is no number.
    """
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype or torch.float32)
    tensors = _Tensors(gguf)
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


class _Tensors:
    """The tensors of a file, by transformers' names."""

    def __init__(self, gguf: GGUFModel) -> None:
        self.gguf = gguf
        self.named = gguf.tensors
        # A private map can be written to, which torch asks for, and is not.
        self._data = torch.from_numpy(np.memmap(gguf.header.path, dtype=np.uint8, mode="c"))

    def weight(self, name: str, shape: torch.Size) -> Weight:
        """The weights [out, in] of a linear layer or an embedding. Raises CheckpointError."""
        tensor = self._tensor(name, shape)
        stored = tensor.stored
        found = weight(stored.type, self._data[stored.start : stored.start + stored.size], *stored.shape)
        if (kind := no_number(found)) is not None:
            raise self._error(f"`{stored.name}` holds {kind}; its weights are damaged")
        if tensor.change == "pairs":
            return found.select(self._halves(name, stored.shape[0]))
        return found

    def floats(self, name: str, shape: torch.Size) -> torch.Tensor:
        """Any tensor as float32. Raises CheckpointError."""
        if len(shape) == 2:
            return self.weight(name, shape).dequantized()
        tensor = self._tensor(name, shape)
        stored = tensor.stored
        found = weight(stored.type, self._data[stored.start : stored.start + stored.size], 1, stored.shape[0])
        if (kind := no_number(found)) is not None:
            raise self._error(f"`{stored.name}` holds {kind}; its weights are damaged")
        values = found.dequantized()[0]
        if tensor.change == "pairs":
            return values[self._halves(name, len(values))]
        return values - 1 if tensor.change == "plus one" else values

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


def _check_places(tensors: _Tensors, model: PreTrainedModel) -> None:
    """Raises CheckpointError for a tensor that the model has no place for."""
    places = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name, tensor in tensors.named.items():
        if name not in places:
            raise CheckpointError(
                f"its file has the tensor `{tensor.stored.name}`, for which {type(model).__name__} has no place"
            )


def _keep_stored(model: PreTrainedModel, tensors: _Tensors) -> None:
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

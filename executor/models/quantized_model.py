"""A transformers model from a quantized safetensors checkpoint, whose linear layers stay as they are stored.

Transformers loads the files, with its names, ties and checks, into layers that have the tensors of the checkpoint. They
are turned into `StoredLinear`s afterwards, or into floats. The package that wrote the checkpoint is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from safetensors import safe_open
from transformers import PretrainedConfig, PreTrainedModel
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from qpdsl.executor.checkpoint.errors import CheckpointError
from qpdsl.executor.checkpoint.model_folder import ModelFolder
from qpdsl.executor.checkpoint.quantization_config import CodeFormat, QuantizedLayers
from qpdsl.executor.kernels.data.weights import FloatWeight, Weight, no_number
from qpdsl.executor.kernels.stored_linear import StoredEmbedding, StoredLinear
from qpdsl.executor.models.packed_codes import OtherOrder, grouped_weight, stored_tensors

# The name under which transformers knows this way to load; no checkpoint has it.
METHOD = "qpdsl-stored"
_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class NotStored(Exception):
    """The checkpoint is quantized in a way that only its package can read."""


@torch.inference_mode(False)
@torch.no_grad()
def loaded_stored(
    load: Callable[[PretrainedConfig], tuple[PreTrainedModel, dict[str, Any]]],
    config: PretrainedConfig,
    layers: QuantizedLayers,
    folder: ModelFolder,
    dtype: torch.dtype | None,
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """What `load` makes of a checkpoint on a CPU, a model and transformers' report, with `layers` as they are stored.

    With a `dtype` its weights become floats of this type. Without one, embeddings and other linear layers keep the type
    that they are stored in, the rest is float32, and so is what it computes. Raises CheckpointError where a tensor
    does not fit or holds what is no number, NotStored where the package is needed.
    """
    held = None if dtype is not None else _stored_type(folder)
    config.quantization_config = {"quant_method": METHOD, "formats": dict(layers.formats), "held": held}
    model, info = load(config)
    del model.hf_quantizer, model.quantization_method, model.config.quantization_config
    model.is_quantized = False
    if not (info["mismatched_keys"] or info["missing_keys"]):
        _finish(model, dtype)
    return model, info


@register_quantization_config(METHOD)
class _StoredConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """What the quantizer is told: formats by the names of layers, and the type of other weights, None for any."""

    def __init__(self, quant_method: str, formats: Mapping[str, CodeFormat], held: torch.dtype | None) -> None:
        self.quant_method = quant_method
        self.formats = formats
        self.held = held


@register_quantizer(METHOD)
class _StoredQuantizer(HfQuantizer):  # type: ignore[misc]
    """Has transformers load the tensors of a quantized layer as they are."""

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> None:
        formats, held = self.quantization_config.formats, self.quantization_config.held
        tied = {name.removesuffix(".weight") for name in model.all_tied_weights_keys}
        modules = dict(model.named_modules())
        for name, form in formats.items():
            place = _place(name, modules, model.base_model_prefix)
            if place is None or place in tied:
                raise NotStored
            try:
                modules[place] = _Codes(form, modules[place])
            except CheckpointError as error:
                raise CheckpointError(f"`{place}`: {error}") from error
            model.set_submodule(place, modules[place])
        for name, module in modules.items():
            if held is not None and type(module) in (torch.nn.Linear, torch.nn.Embedding) and name not in tied:
                module.weight = _empty(module.weight.shape, held)

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False


class _Codes(torch.nn.Module):
    """A linear layer as the tensors of the checkpoint; it computes nothing."""

    def __init__(self, form: CodeFormat, layer: torch.nn.Linear) -> None:
        """Raises CheckpointError where the format does not fit the layer."""
        super().__init__()
        self._form = form
        self.out_features, self.in_features = layer.out_features, layer.in_features
        for name, stored in stored_tensors(form, self.out_features, self.in_features).items():
            setattr(self, name, _empty(stored.shape, stored.dtype))
        self.bias = layer.bias

    def stored(self) -> Weight:
        """The loaded weights. Raises CheckpointError where they are damaged, OtherOrder as `grouped_weight` does."""
        tensors = {name: parameter.detach() for name, parameter in self.named_parameters()}
        weight = grouped_weight(self._form, self.out_features, self.in_features, tensors)
        if (wrong := no_number(weight)) is not None:
            raise CheckpointError(f"its scales hold {wrong}; its weights are damaged")
        return weight


def _finish(model: PreTrainedModel, dtype: torch.dtype | None) -> None:
    """Turns what was loaded into layers that compute."""
    held: dict[int, FloatWeight] = {}
    for name, module in [*model.named_modules()]:
        if isinstance(module, _Codes):
            model.set_submodule(name, _linear(name, module, dtype))
        elif dtype is None and type(module) in (torch.nn.Linear, torch.nn.Embedding):
            values = module.weight.detach()
            if values.dtype == torch.float32:
                continue
            # A tied head and embedding share one.
            stored = held.setdefault(values.data_ptr(), FloatWeight(values))
            if (wrong := no_number(stored)) is not None:
                raise CheckpointError(f"`{name}.weight` holds {wrong}; its weights are damaged")
            is_linear = isinstance(module, torch.nn.Linear)
            model.set_submodule(name, StoredLinear(stored, _bias(module)) if is_linear else StoredEmbedding(stored))


def _linear(name: str, layer: _Codes, dtype: torch.dtype | None) -> torch.nn.Module:
    try:
        weight = layer.stored()
    except CheckpointError as error:
        raise CheckpointError(f"`{name}`: {error}") from error
    except OtherOrder as error:
        raise NotStored from error
    if dtype is None:
        return StoredLinear(weight, _bias(layer))
    floats = torch.nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
    floats.weight = torch.nn.Parameter(weight.dequantized().to(dtype), requires_grad=False)
    floats.bias = layer.bias
    return floats


def _bias(layer: torch.nn.Module) -> torch.Tensor | None:
    bias: Any = layer.bias
    return None if bias is None else bias.detach().float()


def _place(name: str, modules: Mapping[str, torch.nn.Module], prefix: str) -> str | None:
    """The linear layer of a model with this name in the files; a base model has no prefix."""
    places = (name, name.removeprefix(f"{prefix}."), f"{prefix}.{name}")
    return next((place for place in places if type(modules.get(place)) is torch.nn.Linear), None)


def _empty(shape: Sequence[int], dtype: torch.dtype) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(*shape, dtype=dtype, device="meta"), requires_grad=False)


def _stored_type(folder: ModelFolder) -> torch.dtype | None:
    """The type of all matrices of floats in the files; None where they have several."""
    types = set[str]()
    matrices = [name for name, shape in folder.shapes.items() if name.endswith(".weight") and len(shape) == 2]
    for file in {folder.file(name) for name in matrices}:
        with safe_open(str(file), framework="pt") as tensors:
            types |= {tensors.get_slice(name).get_dtype() for name in matrices if folder.file(name) == file}
    floats = [_TYPES[name] for name in types & _TYPES.keys()]
    return floats[0] if len(floats) == 1 else None

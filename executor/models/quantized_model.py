"""A transformers model from a quantized safetensors checkpoint, whose linear layers stay as they are stored.

Transformers loads the files, with its names, ties and checks, into layers that have the tensors of the checkpoint. They
are turned into `StoredLinear`s afterwards, or into floats. The package that wrote the checkpoint is not needed.

The layouts of the whole numbers are those of compressed-tensors 0.20 (`compressors/pack_quantized/helpers.py`,
`compressors/naive_quantized/base.py`), GPTQModel (`nn_modules/qlinear/torch.py`), AutoAWQ (`modules/linear/gemm.py`,
`utils/packing_utils.py`) and torchao 0.18 (`workflows/int8/int8_tensor.py`). In all of them a weight is
(code - zero point) · scale.

Here is also which methods transformers can read, and which layers make rows depend on each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from transformers import PretrainedConfig, PreTrainedModel
from transformers.core_model_loading import WeightConverter
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING
from transformers.utils.quantization_config import QuantizationConfigMixin

from qpdsl.executor.checkpoint.errors import CheckpointError
from qpdsl.executor.checkpoint.model_folder import ModelFolder
from qpdsl.executor.checkpoint.quantization_config import CodeFormat, QuantizedLayers
from qpdsl.executor.kernels.data.weights import FloatWeight, GroupedWeight, Weight, joined, no_number
from qpdsl.executor.kernels.linear import StoredEmbedding, StoredExperts, StoredLinear
from qpdsl.executor.models.gguf_blocks import weight as gguf_weight

# The name under which transformers knows this way to load; no checkpoint has it.
METHOD = "qpdsl-stored"
_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
# Where AWQ puts each of eight neighbouring outputs in an int32, from its lowest bits on.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# The names of codes, scales and zero points where each code has a byte of its own.
_BYTES = {
    "bytes": ("weight", "weight_scale", "weight_zero_point"),
    "torchao": ("_weight_qdata", "_weight_scale", "_weight_zero_point"),
}
# A layer of an expert, in the module of all of them, and its layers.
_EXPERT = re.compile(r"(.*\.experts)\.\d+\.\w+$")
_OF_AN_EXPERT = (("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj"))
# The rows by which a layer is tried for mixing them.
_ROWS = 16
# Larger than the numbers that quantizers set apart (LLM.int8 does from 6 on), and than any scale of the other rows.
_LARGE = 1000.0


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
        for stack in _experts(formats, modules, model.base_model_prefix):
            experts = _CodedExperts(modules[stack], _layers_of_an_expert(formats))
            model.set_submodule(stack, experts)
            modules |= {f"{stack}.{name}": part for name, part in experts.named_modules() if name}
        for name, form in formats.items():
            if form.layout == "mxfp4":
                _pack(name, model, modules)
                continue
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

    def update_weight_conversions(self, weight_conversions: list[Any], *model: PreTrainedModel) -> list[Any]:
        """Without those that stack experts: these are loaded one by one."""
        stacks = any(_EXPERT.search(name) for name in self.quantization_config.formats)
        return [each for each in weight_conversions if not (stacks and _stacks_experts(each))]

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
        # Where it joins experts, transformers 5.17 leaves scales in the type of the files.
        tensors = {name: part.float() if part.is_floating_point() else part for name, part in tensors.items()}
        weight = grouped_weight(self._form, self.out_features, self.in_features, tensors)
        if (wrong := no_number(weight)) is not None:
            raise CheckpointError(f"its scales hold {wrong}; its weights are damaged")
        return weight


class _CodedExperts(torch.nn.ModuleList):
    """Experts apart, each with the layers that the checkpoint has, in the place of a module that stacks them."""

    def __init__(self, own: Any, names: tuple[str, str, str]) -> None:
        """`names`: those of an expert's gate, up and down. Raises NotStored where `own` is built in another way."""
        if not StoredExperts.fits(own) or own.is_transposed or own.has_bias or not own.has_gate:
            raise NotStored
        wide, inputs = own.gate_up_proj.shape[1:]
        sizes = ((inputs, wide // 2), (inputs, wide // 2), (wide // 2, inputs))
        super().__init__(
            torch.nn.ModuleDict(
                {
                    name: torch.nn.Linear(*size, bias=False, device="meta")
                    for name, size in zip(names, sizes, strict=True)
                }
            )
            for _ in range(own.num_experts)
        )
        # No part of this one: its parameters are none of the checkpoint.
        self._own: tuple[torch.nn.Module] = (own,)

    def finished(self, dtype: torch.dtype | None) -> torch.nn.Module:
        """Experts that compute. Raises CheckpointError where they are damaged, NotStored where some are floats."""
        (own,) = self._own
        layers: list[Any] = [[*part.values()] for part in self]  # type: ignore[operator]
        if not all(isinstance(layer, _Codes) for part in layers for layer in part):
            raise NotStored
        try:
            stored = {
                "gate_up_proj": [joined([gate.stored(), up.stored()]) for gate, up, _ in layers],
                "down_proj": [down.stored() for *_, down in layers],
            }
        except OtherOrder as error:
            raise NotStored from error
        if dtype is None:
            return StoredExperts(own, stored, {})
        for name, weights in stored.items():
            floats = torch.stack([weight.dequantized().to(dtype) for weight in weights])
            setattr(own, name, torch.nn.Parameter(floats, requires_grad=False))
        return own


class _PackedExperts(torch.nn.Module):
    """Experts as GPT-OSS's files have them: matrices of all, [E, out, in / 32] blocks of floats in four bits."""

    def __init__(self, own: Any) -> None:
        """Raises NotStored where they are not transposed ones with biases."""
        if not StoredExperts.fits(own) or not own.is_transposed or not own.has_bias:
            raise NotStored
        super().__init__()
        self._own: tuple[torch.nn.Module] = (own,)
        for name in ("gate_up_proj", "down_proj"):
            experts, inputs, outputs = getattr(own, name).shape
            if inputs % 32:
                raise CheckpointError(f"{inputs} inputs are no multiple of its groups of 32")
            setattr(self, f"{name}_blocks", _empty((experts, outputs, inputs // 32, 16), torch.uint8))
            setattr(self, f"{name}_scales", _empty((experts, outputs, inputs // 32), torch.uint8))
            setattr(self, f"{name}_bias", getattr(own, f"{name}_bias"))

    def finished(self, dtype: torch.dtype | None) -> torch.nn.Module:
        """Experts that compute. Raises CheckpointError where they are damaged."""
        (own,) = self._own
        parts = {name: parameter.detach() for name, parameter in self.named_parameters()}
        stored = {
            name: [
                _floats_of_four_bits(blocks, scales)
                for blocks, scales in zip(parts[f"{name}_blocks"], parts[f"{name}_scales"], strict=True)
            ]
            for name in ("gate_up_proj", "down_proj")
        }
        biases = {f"{name}_bias": parts[f"{name}_bias"].float() for name in stored}
        if dtype is None:
            return StoredExperts(own, stored, biases)
        for name, weights in stored.items():
            floats = torch.stack([weight.dequantized().T.to(dtype) for weight in weights])
            setattr(own, name, torch.nn.Parameter(floats.contiguous(), requires_grad=False))
            setattr(own, f"{name}_bias", torch.nn.Parameter(biases[f"{name}_bias"].to(dtype), requires_grad=False))
        return own


def _floats_of_four_bits(blocks: torch.Tensor, scales: torch.Tensor) -> Weight:
    """Weights [out, in] of blocks uint8 [out, in / 32, 16], whose bytes have neighbours, and exponents [out, in / 32].

    Raises CheckpointError where they hold what is no number.
    """
    neighbours = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    # ggml has in a byte a number of the first half of a block and one of the second.
    halves = neighbours[..., :16] | neighbours[..., 16:] << 4
    data = torch.cat((scales[..., None], halves), dim=-1)
    found = gguf_weight("MXFP4", data.flatten(), len(blocks), 32 * blocks.shape[1])
    if (wrong := no_number(found)) is not None:
        raise CheckpointError(f"its scales hold {wrong}; its weights are damaged")
    return found


def _pack(name: str, model: PreTrainedModel, modules: Mapping[str, torch.nn.Module]) -> None:
    """Has the experts with a matrix of this name in the files loaded in blocks. Raises NotStored."""
    places = _places(name.rpartition(".")[0], model.base_model_prefix)
    place = next((place for place in places if place in modules), None)
    if place is None:
        raise NotStored
    if not isinstance(model.get_submodule(place), _PackedExperts):
        model.set_submodule(place, _PackedExperts(modules[place]))


def _finish(model: PreTrainedModel, dtype: torch.dtype | None) -> None:
    """Turns what was loaded into layers that compute."""
    for name, module in [*model.named_modules()]:
        if isinstance(module, _CodedExperts | _PackedExperts):
            try:
                model.set_submodule(name, module.finished(dtype))
            except CheckpointError as error:
                raise CheckpointError(f"`{name}`: {error}") from error
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
    """The linear layer of a model with this name in the files."""
    return next((place for place in _places(name, prefix) if type(modules.get(place)) is torch.nn.Linear), None)


def _places(name: str, prefix: str) -> tuple[str, ...]:
    """The names that a module of the files may have in a model; a base model has no prefix."""
    # As transformers renames it (`conversion_mapping.py`).
    name = name.replace(".block_sparse_moe.", ".mlp.")
    return name, name.removeprefix(f"{prefix}."), f"{prefix}.{name}"


def _experts(names: Iterable[str], modules: Mapping[str, torch.nn.Module], prefix: str) -> list[str]:
    """The modules that stack what the files have apart as experts."""
    found = {match[1] for name in names if (match := _EXPERT.search(name))}
    return [place for name in sorted(found) for place in _places(name, prefix) if place in modules]


def _layers_of_an_expert(names: Iterable[str]) -> tuple[str, str, str]:
    """What the files call an expert's gate, up and down. Raises NotStored."""
    last = {name.rpartition(".")[2] for name in names if _EXPERT.search(name)}
    found = next((own for own in _OF_AN_EXPERT if last == {*own}), None)
    if found is None:
        raise NotStored
    return found


def _stacks_experts(conversion: Any) -> bool:
    """Whether a change that transformers makes to the names of a checkpoint joins weights of experts."""
    return isinstance(conversion, WeightConverter) and any(".experts" in name for name in conversion.target_patterns)


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


class OtherOrder(Exception):
    """The inputs of a group are no neighbours."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a layer."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def stored_tensors(form: CodeFormat, outputs: int, inputs: int) -> dict[str, Stored]:
    """The tensors of a linear layer by name, without its bias; scales are float32, whatever the files have.

    Raises CheckpointError where the layer's sizes do not fit the format.
    """
    group, packed = form.group or inputs, 32 // form.bits
    if inputs % group:
        raise CheckpointError(f"{inputs} inputs are no multiple of its groups of {group}")
    groups = inputs // group
    words, float32 = torch.int32, torch.float32
    if form.layout == "packed":
        tensors = {
            "weight_packed": Stored((outputs, -(-inputs // packed)), words),
            "weight_scale": Stored((outputs, groups), float32),
            "weight_shape": Stored((2,), torch.int64),
        }
        return tensors | ({"weight_zero_point": Stored((-(-outputs // packed), groups), words)} if form.shifted else {})
    if form.layout in _BYTES:
        codes, scale, zero = _BYTES[form.layout]
        tensors = {codes: Stored((outputs, inputs), torch.int8), scale: Stored((outputs, groups), float32)}
        return tensors | ({zero: Stored((outputs, groups), torch.int8)} if form.shifted else {})
    along = outputs if form.layout == "awq" else inputs
    if along % packed or outputs % packed:
        raise CheckpointError(f"its {outputs} outputs and {inputs} inputs do not fill numbers of {packed} codes")
    shape = (inputs, outputs // packed) if form.layout == "awq" else (inputs // packed, outputs)
    tensors = {
        "qweight": Stored(shape, words),
        "qzeros": Stored((groups, outputs // packed), words),
        "scales": Stored((groups, outputs), float32),
    }
    return tensors | ({"g_idx": Stored((inputs,), words)} if form.indexed else {})


def grouped_weight(form: CodeFormat, outputs: int, inputs: int, tensors: Mapping[str, torch.Tensor]) -> GroupedWeight:
    """The weights [outputs, inputs] of a layer with the tensors that `stored_tensors` names.

    Raises CheckpointError where they hold what the format cannot, OtherOrder where groups are of scattered inputs.
    """
    for name, stored in stored_tensors(form, outputs, inputs).items():
        if tensors[name].dtype != stored.dtype:
            given, wanted = (str(dtype).removeprefix("torch.") for dtype in (tensors[name].dtype, stored.dtype))
            raise CheckpointError(f"`{name}` holds {given}, and its format has {wanted} there")
    group = form.group or inputs
    if form.layout == "packed":
        if tensors["weight_shape"].tolist() != [outputs, inputs]:
            given = "×".join(map(str, tensors["weight_shape"].tolist()))
            raise CheckpointError(f"`weight_shape` says {given}, and config.json makes it {outputs}×{inputs}")
        codes = _unpacked(tensors["weight_packed"], form.bits)[:, :inputs]
        zeros = _unpacked(tensors["weight_zero_point"].T, form.bits).T[:outputs] if form.shifted else None
        return _weight(codes, tensors["weight_scale"], zeros, form.bits, group)
    if form.layout in _BYTES:
        given, scale, zero = _BYTES[form.layout]
        # Signed numbers as those that are packed: all from 0 on. What is too small becomes too large.
        half = 1 << (form.bits - 1)
        codes = tensors[given].view(torch.uint8) + half
        if int(codes.max()) >= 2 * half:
            raise CheckpointError(f"`{given}` holds numbers of more than {form.bits} bits")
        zeros = tensors[zero].short() + half if form.shifted else None
        return _weight(codes, tensors[scale], zeros, form.bits, group)
    scales = tensors["scales"].T
    if form.layout == "awq":
        order = torch.tensor(_AWQ_ORDER).argsort()
        codes, zeros = (
            _unpacked(tensors[name], form.bits).view(-1, tensors[name].shape[1], len(order))[..., order].flatten(1).T
            for name in ("qweight", "qzeros")
        )
        return _weight(codes, scales, zeros, form.bits, group)
    if form.indexed and not torch.equal(tensors["g_idx"], torch.arange(inputs, dtype=torch.int32) // group):
        raise OtherOrder
    codes = _unpacked(tensors["qweight"].T, form.bits)
    zeros = _unpacked(tensors["qzeros"], form.bits).T
    if form.layout == "gptq":
        # The first version of the format stored zero points less one.
        zeros = zeros.short() + 1
    return _weight(codes, scales, zeros, form.bits, group)


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes uint8 [n, m · 32 / bits] from 0 on, of int32 [n, m]; the lowest bits come first."""
    # On the machines that torch has, the lowest byte of a number comes first.
    codes = words.contiguous().view(torch.uint8)
    return codes if bits == 8 else torch.stack((codes & 15, codes >> 4), dim=2).flatten(1)


def _weight(
    codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: int, group: int
) -> GroupedWeight:
    """Weights of `codes` uint8 [out, in]. They mean 0 at the zero points [out, groups], in the middle where None."""
    scales, middle = scales.float().contiguous(), 1 << (bits - 1)
    points = torch.full_like(scales, middle) if zeros is None else zeros.float()
    if bits == 8:
        # Eight bits are held with a sign.
        codes, points = codes - middle, points - middle
    return GroupedWeight(
        codes.view(torch.int8).contiguous(), bits, scales, -points * scales if points.any() else None, group
    )


def unknown_method(config: PretrainedConfig) -> str | None:
    """The quantization method that transformers does not know; None where it knows it or there is none.

    Transformers would take the stored numbers for weights.
    """
    quantization: Any = getattr(config, "quantization_config", None)
    if quantization is None:
        return None
    options = quantization if isinstance(quantization, dict) else quantization.to_dict()
    if options.get("load_in_8bit") or options.get("load_in_4bit"):
        return None
    method = str(getattr(options.get("quant_method"), "value", options.get("quant_method")))
    return None if method in AUTO_QUANTIZATION_CONFIG_MAPPING and method != METHOD else method


@torch.inference_mode()
def mixed_rows(model: PreTrainedModel) -> str | None:
    """Which linear layers make a row's result depend on the other rows of its batch, in words; None where none does.

    One layer of each type and shape is tried. Layers whose weights were laid out elsewhere are not.
    """
    tried = set[tuple[Any, ...]]()
    for module in model.modules():
        width = getattr(module, "in_features", None)
        stored = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        tensors = [tensor for tensor in stored if tensor.numel()]
        weight = getattr(module, "weight", None)
        emptied = isinstance(weight, torch.Tensor) and not weight.numel()
        if not isinstance(width, int) or not tensors or emptied:
            continue
        kind = (type(module), type(tensors[0]), width, getattr(module, "out_features", None))
        if kind not in tried and _mixes(module, width, model.dtype, tensors[0].device):
            name = type(module).__name__
            hint = " (they do not where its llm_int8_threshold is 0)" if name == "Linear8bitLt" else ""
            return f"what its {name} layers make of a token depends on what else is in the batch{hint}"
        tried.add(kind)
    return None


def _mixes(layer: torch.nn.Module, width: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the results of the first half of some rows change where the second half is large."""
    rows = torch.randn(_ROWS, width, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    others = rows.clone()
    others[_ROWS // 2 :] *= _LARGE
    half = slice(_ROWS // 2)
    return not torch.equal(layer(rows)[half], layer(others)[half])

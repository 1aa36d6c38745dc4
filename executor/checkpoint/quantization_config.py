"""What a config.json says of linear layers whose weights are stored as whole numbers.

Read are weights in four or eight bits with a scale for each group of inputs, or for all of them (a channel):
compressed-tensors as llm-compressor writes it (`compressed_tensors/quantization`, version 0.20), GPTQ (AutoGPTQ,
GPTQModel), AWQ (AutoAWQ's version "gemm") and torchao's int8 weights (version 0.18); and GPT-OSS's experts in MXFP4.
Whatever is not known here, or changes activations, keys or values too, is left to the package that wrote it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qpdsl.executor.checkpoint.name_pattern import matched

# packed:  compressed-tensors, codes in int32 along the inputs
# bytes:   compressed-tensors, a code in each int8
# gptq:    codes in int32 along the inputs, transposed; zero points less one
# gptq_v2: the same with the zero points themselves
# awq:     codes in int32 along the outputs, in an order of their own, transposed
# torchao: as bytes, under other names
# mxfp4:   all experts of a layer in blocks of 32 floats of four bits, two in a byte, with an exponent
Layout = Literal["packed", "bytes", "gptq", "gptq_v2", "awq", "torchao", "mxfp4"]

# The tensor by which a quantized layer is found.
_CODES: dict[Layout, str] = {
    "packed": "weight_packed",
    "bytes": "weight_scale",
    "gptq": "qweight",
    "gptq_v2": "qweight",
    "awq": "qweight",
    "torchao": "_weight_qdata",
    "mxfp4": "blocks",
}
_FORMATS: dict[str, Layout] = {
    "pack-quantized": "packed",
    "int-quantized": "bytes",
    "naive-quantized": "bytes",
}
# Settings of weights that say how their scales were found.
_OF_CALIBRATION = {"observer", "observer_kwargs"}
_SCALE_TYPES = (None, "torch.float32", "torch.bfloat16", "torch.float16")
_GPTQ: dict[str, Layout] = {"gptq": "gptq", "gptq_v2": "gptq_v2"}
# Settings of GPTQ that say how the codes were found, or how another library computes with them.
_OF_GPTQ = {
    "act_group_aware",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_percent",
    "dataset",
    "max_input_length",
    "meta",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "pad_token_id",
    "static_groups",
    "sym",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
}
_OF_AWQ = {"backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse", "modules_to_not_convert"}


@dataclass(frozen=True, slots=True)
class CodeFormat:
    """How the weights of a linear layer are stored as whole numbers.

    bits:    4 or 8
    group:   neighbouring inputs that share a scale; None where all inputs of an output do
    shifted: whether groups have zero points; without, codes are signed
    indexed: whether the layer has a tensor that says which group an input is in
    """

    layout: Layout
    bits: int
    group: int | None
    shifted: bool
    indexed: bool = False

    @property
    def kind(self) -> str:
        """In words, as those of `GroupedWeight`."""
        if self.layout == "mxfp4":
            return "MXFP4"
        return f"int{self.bits} by channel" if self.group is None else f"int{self.bits} in groups of {self.group}"


@dataclass(frozen=True, slots=True)
class QuantizedLayers:
    """The format of each quantized linear layer, by its name in the weight files."""

    formats: Mapping[str, CodeFormat]

    @property
    def kinds(self) -> str:
        """How their weights are stored, the most common way first, in words."""
        count = Counter(form.kind for form in self.formats.values())
        return ", ".join(sorted(count, key=lambda kind: (-count[kind], kind)))


def quantized_layers(config: Mapping[str, Any], tensors: Iterable[str]) -> QuantizedLayers | None:
    """The quantized layers of a checkpoint with this config.json and the given names of `tensors`.

    None where it has none, or is quantized in a way that is not read here.
    """
    settings = config.get("quantization_config")
    if not isinstance(settings, dict):
        return None
    readers = {"compressed-tensors": _compressed, "gptq": _gptq, "awq": _awq, "torchao": _torchao, "mxfp4": _mxfp4}
    method = settings.get("quant_method")
    reader = readers.get(method) if isinstance(method, str) else None
    names = frozenset(tensors)
    formats = None if reader is None else reader({**settings}, names)
    return QuantizedLayers(formats) if formats else None


def _named(names: frozenset[str], layout: Layout) -> list[str]:
    """The layers that have codes in this layout."""
    end = f".{_CODES[layout]}"
    return sorted(name.removesuffix(end) for name in names if name.endswith(end))


def _compressed(settings: dict[str, Any], names: frozenset[str]) -> dict[str, CodeFormat] | None:
    for known in ("quant_method", "global_compression_ratio", "version", "ignore", "run_compressed"):
        settings.pop(known, None)
    groups, layout = settings.pop("config_groups", None), settings.pop("format", None)
    if settings.pop("quantization_status", None) != "compressed" or not isinstance(groups, dict):
        return None
    # Such as sparsity, transforms of weights, and a scheme for keys and values.
    if any(settings.values()):
        return None
    schemes = [_Scheme.of(group, layout) for group in groups.values()]
    if not schemes or None in schemes or any(name.endswith(("_g_idx", "_global_scale")) for name in names):
        return None
    formats: dict[str, CodeFormat] = {}
    for chosen in {scheme.form.layout for scheme in schemes if scheme}:
        for name in _named(names, chosen):
            if chosen == "bytes" and f"{name}.weight" not in names:
                continue
            found = [scheme.form for scheme in schemes if scheme and scheme.form.layout == chosen and scheme.has(name)]
            if len(found) != 1 or (f"{name}.weight_zero_point" in names) != found[0].shifted:
                return None
            formats[name] = found[0]
    return formats


@dataclass(frozen=True, slots=True)
class _Scheme:
    """A group of `config_groups`."""

    targets: tuple[str, ...]
    form: CodeFormat

    @classmethod
    def of(cls, group: Any, layout: Any) -> _Scheme | None:
        if not isinstance(group, dict):
            return None
        rest = {**group}
        targets, weights = rest.pop("targets", None), rest.pop("weights", None)
        layout = rest.pop("format", None) or layout
        if any(value is not None for value in rest.values()) or not isinstance(weights, dict):
            return None
        form = _form(weights, _FORMATS.get(layout) if isinstance(layout, str) else None)
        named = isinstance(targets, list) and all(isinstance(target, str) for target in targets)
        return cls(tuple(targets), form) if named and form is not None else None

    def has(self, name: str) -> bool:
        return any(_matches(target, name) for target in self.targets)


def _matches(target: str, name: str) -> bool:
    """Whether a target names a layer: its type, its name, or a pattern of names."""
    if not target.startswith("re:"):
        return target in ("Linear", name)
    return matched(target.removeprefix("re:"), name) is not None


def _form(weights: dict[str, Any], layout: Layout | None) -> CodeFormat | None:
    rest = {name: value for name, value in weights.items() if name not in _OF_CALIBRATION}
    bits, symmetric, group = rest.pop("num_bits", None), rest.pop("symmetric", True), rest.pop("group_size", None)
    strategy = rest.pop("strategy", None)
    known = (
        rest.pop("type", "int") == "int"
        # Those of "group" have an index, which tells.
        and rest.pop("actorder", None) in (None, False, "weight", "static")
        and rest.pop("scale_dtype", None) in _SCALE_TYPES
        and rest.pop("zp_dtype", None) in (None, "torch.int8")
    )
    if strategy == "channel" or (strategy is None and group == -1):
        group = None
    elif strategy not in ("group", None) or not _is_group(group):
        return None
    fits = layout is not None and bits in (4, 8) and type(bits) is int and type(symmetric) is bool
    if not known or not fits or any(rest.values()):
        return None
    assert layout is not None
    return CodeFormat(layout, bits, group, not symmetric)


def _gptq(settings: dict[str, Any], names: frozenset[str]) -> dict[str, CodeFormat] | None:
    rest = {name: value for name, value in settings.items() if name not in _OF_GPTQ and name != "quant_method"}
    bits, group = rest.pop("bits", None), rest.pop("group_size", None)
    told = [str(rest.pop(name, None) or "").lower() for name in ("checkpoint_format", "format")]
    layout = _GPTQ.get(next(filter(None, told), "gptq"))
    # In the order of activations, the inputs of a group are no neighbours.
    ordered = rest.pop("desc_act", False) and group != -1
    rest.pop("lm_head", None)
    words = rest.pop("pack_dtype", "int32")
    if layout is None or ordered or words != "int32" or not _fits(bits, group) or any(rest.values()):
        return None
    size = None if group == -1 else group
    found = _named(names, layout)
    return {name: CodeFormat(layout, bits, size, True, f"{name}.g_idx" in names) for name in found}


def _awq(settings: dict[str, Any], names: frozenset[str]) -> dict[str, CodeFormat] | None:
    rest = {name: value for name, value in settings.items() if name not in _OF_AWQ and name != "quant_method"}
    bits, group = rest.pop("bits", None), rest.pop("group_size", None)
    told = {str(rest.pop(name, None) or "gemm").lower() for name in ("version", "format")}
    # Without zero points it is another format.
    shifted = rest.pop("zero_point", True)
    if told != {"gemm"} or shifted is not True or bits != 4 or not _fits(bits, group) or any(rest.values()):
        return None
    size = None if group == -1 else group
    return {name: CodeFormat("awq", bits, size, True) for name in _named(names, "awq")}


def _torchao(settings: dict[str, Any], names: frozenset[str]) -> dict[str, CodeFormat] | None:
    for known in ("quant_method", "modules_to_not_convert"):
        settings.pop(known, None)
    kinds = settings.pop("quant_type", None)
    kind = kinds.get("default") if isinstance(kinds, dict) and len(kinds) == 1 else None
    if any(settings.values()) or not isinstance(kind, dict) or not isinstance(kind.get("_data"), dict):
        return None
    rest = {name: value for name, value in kind["_data"].items() if name != "set_inductor_config"}
    granularity = rest.pop("granularity", None)
    plain = (kind.get("_type"), kind.get("_version")) == ("Int8WeightOnlyConfig", 2) and not any(rest.values())
    if not plain or not isinstance(granularity, dict) or not isinstance(granularity.get("_data"), dict):
        return None
    group = granularity["_data"].get("group_size") if granularity.get("_type") == "PerGroup" else None
    if group is None and (granularity.get("_type"), granularity["_data"]) != ("PerRow", {"dim": -1}):
        return None
    if group is not None and not _is_group(group):
        return None
    found = _named(names, "torchao")
    return {name: CodeFormat("torchao", 8, group, f"{name}._weight_zero_point" in names) for name in found}


def _mxfp4(settings: dict[str, Any], names: frozenset[str]) -> dict[str, CodeFormat] | None:
    rest = {name: value for name, value in settings.items() if name not in ("quant_method", "modules_to_not_convert")}
    if any(rest.values()):
        return None
    end = f"_{_CODES['mxfp4']}"
    return {name.removesuffix(end): CodeFormat("mxfp4", 4, 32, False) for name in sorted(names) if name.endswith(end)}


def _fits(bits: Any, group: Any) -> bool:
    return type(bits) is int and bits in (4, 8) and (_is_group(group) or group == -1)


def _is_group(size: Any) -> bool:
    return type(size) is int and size > 0

"""Merging a LoRA adapter into the weights of a loaded model, so that it runs as any other model does.

With W of a linear layer [out, in], A [r, in] and B [out, r] the layer gets W + scale·B·A, computed in float32 and
rounded once to the type of W (`LoraConfig.scale_of`). DoRA (Liu et al., 2024, equation 5) divides each row of that by
its length and multiplies it by the magnitude that was trained. An embedding [ids, d] is the transpose of such a layer,
and so is transformers' Conv1D.

This is what PEFT's `merge_and_unload` makes, but for one thing: where input and output embeddings share their weights
and the adapter changes one of them only, each gets weights of its own. The unmerged adapter computes that, and so it
was trained; PEFT's merge would change both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from safetensors import SafetensorError, safe_open
from torch.nn import Embedding, Linear, Module, Parameter
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from qpdsl.executor.checkpoint.adapter_folder import ADAPTER_WEIGHTS, ALL_LINEAR, AdapterFolder
from qpdsl.executor.checkpoint.errors import CheckpointError

_PREFIX = "base_model.model."
_TOKEN_ROWS = ".token_adapter.trainable_tokens_delta"
# The ends of the names of an adapter's own tensors, and what they are.
_PARTS = {
    ".lora_A.weight": "A",
    ".lora_B.weight": "B",
    ".lora_B.bias": "bias",
    ".lora_embedding_A": "A",
    ".lora_embedding_B": "B",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
}
_TYPES = (torch.float32, torch.float16, torch.bfloat16)


@torch.no_grad()
def merge(model: PreTrainedModel, adapter: AdapterFolder, *, is_base: bool = False) -> None:
    """Changes the weights of a model as the adapter says. `is_base`: the model is a base model without its head.

    Every tensor must have its place and every layer that the adapter names its tensors, all of the right shapes and
    finite, before any weight changes. Raises CheckpointError, which names the tensor or the layer.
    """
    merging = _Merging(model, adapter, is_base=is_base)
    merging.check()
    try:
        with safe_open(str(adapter.path / ADAPTER_WEIGHTS), framework="pt", device=str(model.device)) as file:
            merging.apply({name: _finite(name, file.get_tensor(name)) for name in adapter.shapes})
    except SafetensorError as error:
        raise CheckpointError(f"`{ADAPTER_WEIGHTS}` cannot be read: {error}") from error


@dataclass(frozen=True)
class _Layer:
    """A layer that gets two matrices: the names of its tensors by what they are."""

    name: str
    module: Module
    tensors: Mapping[str, str]

    @property
    def weight(self) -> torch.Tensor:
        return _tensor(self.module, "weight")

    @property
    def is_transposed(self) -> bool:
        """Whether the weight is [in, out]."""
        return not isinstance(self.module, Linear)


class _Merging:
    """Finds a place for each tensor of an adapter. Names of modules are those of the whole causal language model."""

    def __init__(self, model: PreTrainedModel, adapter: AdapterFolder, *, is_base: bool) -> None:
        self.model = model
        self.config = adapter.config
        self.shapes = adapter.shapes
        lead = f"{model.base_model_prefix}." if is_base else ""
        self.modules = {f"{lead}{name}": module for name, module in model.named_modules() if name}
        self.layers: list[_Layer] = []
        # The tensors that come whole, by the parameter (its module's name and its own) that they replace.
        self.whole: dict[tuple[str, str], str] = {}
        # The tensors with the rows of some tokens, by the name of their module.
        self.rows: dict[str, str] = {}

    def check(self) -> None:
        """Sorts the tensors by their places. Raises CheckpointError where one has none, or a place lacks its tensor."""
        parts: dict[str, dict[str, str]] = {}
        whole: dict[str, str] = {}
        for tensor in self.shapes:
            module, part = _split(tensor)
            if part is not None:
                parts.setdefault(module, {})[part] = tensor
            elif tensor.endswith(_TOKEN_ROWS):
                self.rows[module] = tensor
            else:
                whole[module] = tensor
        targets = self._targets()
        for name, tensors in parts.items():
            if name not in self.modules:
                raise self._no_place(next(iter(tensors.values())))
            if name not in targets:
                tensor = next(iter(tensors.values()))
                raise CheckpointError(f"its files have `{tensor}`, and its configuration does not name that layer")
        for name in targets:
            self._check_layer(_Layer(name, self.modules[name], parts.get(name, {})))
        for path, tensor in whole.items():
            self._find_whole(tensor, path)
        self._check_saved()
        self._check_rows()

    def apply(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Changes the weights. Raises CheckpointError where they become larger than their type can hold."""
        for (name, own), tensor in self.whole.items():
            module = self.modules[name]
            before = getattr(module, own)
            self._set(module, own, tensors[tensor].to(before.dtype), shared=self.config.tied)
        for layer in self.layers:
            self._merge_layer(layer, tensors)
        for name, tensor in self.rows.items():
            module = self.modules[name]
            weight = module.weight.clone()
            weight[torch.tensor(self._ids(name), device=weight.device)] = tensors[tensor].to(weight.dtype)
            self._set(module, "weight", weight, shared=len(self.rows) == 1 and module is self._embeddings())
        output = self.model.get_output_embeddings()
        embeddings = self._embeddings()
        if isinstance(output, Linear) and embeddings is not None and output.weight is not embeddings.weight:
            for config in (self.model.config, self.model.config.get_text_config()):
                config.tie_word_embeddings = False

    def _merge_layer(self, layer: _Layer, tensors: Mapping[str, torch.Tensor]) -> None:
        names = layer.tensors
        weight = layer.weight
        base = weight.float().T if layer.is_transposed else weight.float()
        scale = self.config.scale_of(layer.name)
        merged = base + (tensors[names["B"]].float() @ tensors[names["A"]].float()) * scale
        if "magnitude" in names:
            lengths = torch.linalg.vector_norm(merged, dim=1, keepdim=True)
            merged = tensors[names["magnitude"]].float().view(-1, 1) / lengths * merged
        rounded = (merged.T if layer.is_transposed else merged).to(weight.dtype).contiguous()
        if not rounded.isfinite().all():
            raise CheckpointError(f"`{layer.name}.weight` is beyond what {weight.dtype} can hold with it")
        self._set(layer.module, "weight", rounded)
        if "bias" in names:
            bias = _tensor(layer.module, "bias")
            self._set(layer.module, "bias", (bias.float() + tensors[names["bias"]].float() * scale).to(bias.dtype))

    def _set(self, module: Module, own: str, value: torch.Tensor, *, shared: bool = False) -> None:
        """Replaces a parameter of a module, and with `shared` also of the modules that share it."""
        before = getattr(module, own)
        after = Parameter(value, requires_grad=False)
        for other in (self.model.get_output_embeddings(), self._embeddings()) if shared else ():
            if other is not None and getattr(other, own, None) is before:
                setattr(other, own, after)
        setattr(module, own, after)

    def _targets(self) -> list[str]:
        names = [name for name in self.modules if self.config.is_target(name)]
        if self.config.targets == ALL_LINEAR:
            output = self.model.get_output_embeddings()
            linear = (Linear, Conv1D)
            names = [n for n in names if isinstance(self.modules[n], linear) and self.modules[n] is not output]
        if self.config.tied:
            # The output layer has copies of the matrices of the input embeddings.
            names += [n for n in self.modules if n not in names and self._is_tied(n) and any(map(self._is_tied, names))]
        return names

    def _check_layer(self, layer: _Layer) -> None:
        name, module = layer.name, layer.module
        if not (type(module) in (Linear, Conv1D) or isinstance(module, Embedding)):
            if hasattr(module, "in_features"):
                raise _quantized(name)
            kind = type(module).__name__
            raise CheckpointError(f"its configuration names `{name}`, and a {kind} cannot take LoRA matrices")
        if not _is_plain(layer.weight):
            raise _quantized(name)
        ends = ("lora_embedding_A", "lora_embedding_B") if isinstance(module, Embedding) else ("lora_A", "lora_B")
        needed = dict(zip(("A", "B"), ends, strict=True))
        needed |= {"bias": "lora_B.bias"} if self.config.with_bias and not isinstance(module, Embedding) else {}
        needed |= {"magnitude": "lora_magnitude_vector"} if self.config.with_magnitudes else {}
        for part, end in needed.items():
            if part not in layer.tensors:
                raise CheckpointError(f"its files lack `{end}` of `{name}`, which its configuration names")
        for part, tensor in layer.tensors.items():
            if part not in needed:
                setting = "lora_bias" if part == "bias" else "use_dora"
                raise CheckpointError(f"its files have `{tensor}`, and its configuration does not say `{setting}`")
        width, height = layer.weight.shape if layer.is_transposed else layer.weight.T.shape
        rank = self.config.rank_of(name)
        shapes = {"A": (rank, width), "B": (height, rank), "bias": (height,), "magnitude": (height,)}
        for part, tensor in layer.tensors.items():
            self._check_shape(tensor, shapes[part], f"`{name}` and the rank {rank} make it")
        if "bias" in layer.tensors and getattr(module, "bias", None) is None:
            raise CheckpointError(f"`{layer.tensors['bias']}` changes a bias, and `{name}` has none")
        self.layers.append(layer)

    def _find_whole(self, tensor: str, path: str) -> None:
        """Notes a tensor that replaces a parameter, if the configuration has such tensors."""
        name, _, own = path.rpartition(".")
        name = name.removesuffix(".base_layer")
        module = self.modules.get(name)
        before = None if module is None else module._parameters.get(own)
        if before is None:
            raise self._no_place(tensor)
        ends = [name[:end] for end in range(len(name) + 1) if end == len(name) or name[end] == "."]
        is_biased = own == "bias" and (
            self.config.bias == "all" or (self.config.bias == "lora_only" and self.config.is_target(name))
        )
        is_embedding = module in (self._embeddings(), self.model.get_output_embeddings())
        if not (any(map(self.config.is_saved, ends)) or is_biased or is_embedding):
            raise CheckpointError(f"its files have `{tensor}`, and its configuration does not name that layer")
        if not _is_plain(before):
            raise _quantized(name)
        self._check_shape(tensor, tuple(before.shape), "the model makes it")
        self.whole[name, own] = tensor

    def _check_saved(self) -> None:
        for name, module in self.modules.items():
            if self.config.is_saved(name):
                for inner, _ in module.named_parameters():
                    at, _, own = f"{name}.{inner}".rpartition(".")
                    if (at, own) not in self.whole:
                        raise CheckpointError(f"its files lack `{at}.{own}`, which its `modules_to_save` names")

    def _check_rows(self) -> None:
        named = {self._row_module(name): ids for name, ids in self.config.token_rows.items()}
        for name, tensor in self.rows.items():
            module = self.modules.get(name)
            if module is None:
                raise self._no_place(tensor)
            if name not in named:
                raise CheckpointError(f"its files have `{tensor}`, and `trainable_token_indices` names no such rows")
            if not isinstance(module, Embedding | Linear) or not _is_plain(module.weight):
                raise _quantized(name)
            count, width = module.weight.shape
            self._check_shape(tensor, (len(named[name]), width), "the model and `trainable_token_indices` make it")
            if max(named[name], default=0) >= count:
                raise CheckpointError(f"`trainable_token_indices` names an id beyond the {count} that `{name}` has")
            if any(layer.name == name for layer in self.layers):
                raise CheckpointError(f"it changes `{name}` both by LoRA matrices and by rows of tokens")
        for name in named:
            # The output layer follows the input embeddings where it shares their weights.
            is_tied = self._is_tied(name) and len(self.rows) == 1
            if name not in self.rows and not is_tied:
                raise CheckpointError(f"its files lack the rows of `{name}` that `trainable_token_indices` names")

    def _row_module(self, name: str) -> str:
        """The whole name of a module that `trainable_token_indices` names. Raises CheckpointError."""
        embeddings = self._embeddings()
        for known, module in self.modules.items():
            if module is embeddings if name == "" else (known == name or known.endswith(f".{name}")):
                return known
        raise CheckpointError(f"`trainable_token_indices` names `{name}`, and the model has no such layer")

    def _ids(self, module: str) -> tuple[int, ...]:
        return next(ids for name, ids in self.config.token_rows.items() if self._row_module(name) == module)

    def _is_tied(self, name: str) -> bool:
        embeddings, module = self._embeddings(), self.modules[name]
        return embeddings is not None and getattr(module, "weight", None) is embeddings.weight

    def _embeddings(self) -> Module | None:
        embeddings: Module | None = self.model.get_input_embeddings()
        return embeddings

    def _check_shape(self, tensor: str, wanted: tuple[int, ...], why: str) -> None:
        if self.shapes[tensor] != wanted:
            has = "×".join(map(str, self.shapes[tensor])) or "()"
            raise CheckpointError(f"`{tensor}` has the shape {has}, and {why} {'×'.join(map(str, wanted))}")

    def _no_place(self, tensor: str) -> CheckpointError:
        return CheckpointError(f"its files have `{tensor}`, for which {type(self.model).__name__} has no place")


def _split(tensor: str) -> tuple[str, str | None]:
    """The name of the module that a tensor belongs to, and which part of it the tensor is; None for no such part."""
    path = tensor.removeprefix(_PREFIX)
    for end, part in _PARTS.items():
        if path.endswith(end):
            return path.removesuffix(end), part
    return path.removesuffix(_TOKEN_ROWS), None


def _tensor(module: Module, name: str) -> torch.Tensor:
    tensor = getattr(module, name)
    assert isinstance(tensor, torch.Tensor)
    return tensor


def _is_plain(weight: torch.Tensor) -> bool:
    """Whether a weight holds floating-point numbers, each for itself."""
    return type(weight.data) is torch.Tensor and weight.dtype in _TYPES


def _quantized(module: str) -> CheckpointError:
    return CheckpointError(
        f"the model has `{module}` quantized, and an adapter is merged into floating-point weights; use the model as "
        "it was before it was quantized"
    )


def _finite(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in _TYPES:
        raise CheckpointError(
            f"`{name}` holds {str(tensor.dtype).removeprefix('torch.')}, and not floating-point numbers"
        )
    if not tensor.isfinite().all():
        raise CheckpointError(f"`{name}` holds {'NaN' if tensor.isnan().any() else 'infinity'}; it is damaged")
    return tensor

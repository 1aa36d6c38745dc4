"""The tensors of a safetensors checkpoint by name, and the heads among them that a base model does not load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from transformers.utils import cached_file

from qpdsl.executor.engine.model.heads import Layer, ValueHead
from qpdsl.executor.text.context import ContextError

_SINGLE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class CheckpointTensors:
    """`files` maps each tensor to its file: the name of one in a folder (`location` a Path) or in a hub repository."""

    location: str | Path
    files: Mapping[str, str]

    @classmethod
    def of(cls, location: str | Path) -> CheckpointTensors:
        """Reads the index, or the header of the one file. Raises ContextError where there is none to read."""
        try:
            index = _find(location, _INDEX)
            if index is not None:
                return cls(location, json.loads(index.read_text(encoding="utf-8"))["weight_map"])
            names = [_SINGLE_FILE]
            if isinstance(location, Path):
                names = sorted(path.name for path in location.glob("*.safetensors"))
            return cls(location, {tensor: name for name in names for tensor in _tensors_in(location, name)})
        except Exception as error:  # the hub, the disk and a damaged file may each raise their own
            raise ContextError(f"its weights cannot be listed: {error}") from error

    def tensor(self, name: str) -> torch.Tensor:
        """Raises KeyError where there is no such tensor, OSError where its file cannot be read."""
        with safe_open(str(_path(self.location, self.files[name])), framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor

    def has_head(self, name: str) -> bool:
        """Whether there are weights of a head `name`."""
        return bool(self._linear_layers(name))

    def head(self, name: str, device: str) -> ValueHead | None:
        """The head `name`, on `device`; None where there are no weights of it."""
        layers = self._linear_layers(name)
        return ValueHead([self._layer(layer, device) for layer in layers]) if layers else None

    def _linear_layers(self, name: str) -> list[str]:
        """The linear layers of a head, in order: one, or a sequence with activations between them."""
        if f"{name}.weight" in self.files:
            return [name]
        numbers = [
            int(number)
            for tensor in self.files
            if tensor.startswith(f"{name}.") and tensor.endswith(".weight")
            if (number := tensor.removeprefix(f"{name}.").removesuffix(".weight")).isdecimal()
        ]
        return [f"{name}.{number}" for number in sorted(numbers)]

    def _layer(self, name: str, device: str) -> Layer:
        weight, bias = self.tensor(f"{name}.weight"), f"{name}.bias"
        return weight.to(device), self.tensor(bias).to(device) if bias in self.files else None


def _tensors_in(location: str | Path, file: str) -> list[str]:
    with safe_open(str(_path(location, file)), framework="pt") as tensors:
        return list(tensors.keys())


def _path(location: str | Path, file: str) -> Path:
    if Path(file).name != file:
        raise ValueError(f"its index names the file `{file}`, which is not in its own folder")
    path = _find(location, file)
    if path is None:
        raise OSError(f"it has no `{file}`")
    return path


def _find(location: str | Path, file: str) -> Path | None:
    if isinstance(location, Path):
        path = location / file
        return path if path.is_file() else None
    cached = cached_file(location, file, _raise_exceptions_for_missing_entries=False)
    return None if cached is None else Path(cached)

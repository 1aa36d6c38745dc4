"""The tensors of a safetensors checkpoint by name, and the heads among them that a base model does not load."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from safetensors import safe_open

from qpdsl.executor.checkpoint.model_folder import ModelFolder
from qpdsl.executor.engine.model.heads import Layer, ValueHead


@dataclass(frozen=True)
class CheckpointTensors:
    """The tensors in the files of a model folder."""

    folder: ModelFolder

    def tensor(self, name: str) -> torch.Tensor:
        """Raises KeyError where there is no such tensor, OSError where its file cannot be read."""
        with safe_open(str(self.folder.file(name)), framework="pt") as file:
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
        tensors = self.folder.tensors
        if f"{name}.weight" in tensors:
            return [name]
        numbers = [
            int(number)
            for tensor in tensors
            if tensor.startswith(f"{name}.") and tensor.endswith(".weight")
            if (number := tensor.removeprefix(f"{name}.").removesuffix(".weight")).isdecimal()
        ]
        return [f"{name}.{number}" for number in sorted(numbers)]

    def _layer(self, name: str, device: str) -> Layer:
        weight, bias = self.tensor(f"{name}.weight"), f"{name}.bias"
        return weight.to(device), self.tensor(bias).to(device) if bias in self.folder.tensors else None

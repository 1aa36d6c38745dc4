"""Exit heads: what makes the hidden state after a layer readable by the model's own last norm and head.

An exit head is a tuned lens (Belrose et al., 2023): h + W·h + b in the place of the residual h, W and b fitted so that
norm and head give the full model's distribution. `qpdsl calibrate` writes a folder with heads for one or more layers of
a model: the tensors `LAYER.weight` and `LAYER.bias`, and a record of what they are for and how they agreed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from qpdsl.executor.checkpoint.errors import CheckpointError
from qpdsl.executor.checkpoint.safe_files import tensor_shapes
from qpdsl.exit_heads.exit_record import WEIGHTS, ExitFigures, ExitRecord, reading


@dataclass(frozen=True, slots=True)
class ExitHead:
    """The head after `layer` layers: `weight` float32 [d, d], `bias` float32 [d]. `figures`: how it agreed."""

    layer: int
    weight: torch.Tensor
    bias: torch.Tensor
    figures: ExitFigures

    @property
    def width(self) -> int:
        """The width d of the hidden states."""
        return self.bias.shape[0]

    @property
    def bound(self) -> float:
        """See `LogitBound.largest`."""
        return self.figures.bound.largest

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the last norm is given in the place of the residual `hidden` [N, d] after the layer, float32 [N, d]."""
        wide = hidden.float()
        return wide + wide @ self.weight.T + self.bias

    @classmethod
    def load(cls, name: str, folder: Path, layer: int | None, digest: str, layers: int, width: int) -> ExitHead:
        """The head of a folder after `layer` layers; the one that saves most where no layer is named.

        digest, layers, width: those of the model that it is for, which is called `name` in errors (`location_digest`
        makes the digest). Raises ModelError where the folder is none, is damaged, or is for another model.
        """
        with reading(name, folder):
            record = ExitRecord.checked(folder)
            record.check(digest, layers, width)
            return cls._of(folder, record, record.head(layer))

    @classmethod
    def _of(cls, folder: Path, record: ExitRecord, figures: ExitFigures) -> ExitHead:
        """Raises CheckpointError where the tensors are not those of the record, or no numbers."""
        names = [f"{figures.layer}.{part}" for part in ("weight", "bias")]
        shapes = tensor_shapes(folder / WEIGHTS)
        for name, shape in zip(names, ((record.width,) * 2, (record.width,)), strict=True):
            if name not in shapes:
                raise CheckpointError(f"its {WEIGHTS} lacks `{name}`")
            if shapes[name] != shape:
                raise CheckpointError(f"its `{name}` is {list(shapes[name])}, and its record says {list(shape)}")
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            weight, bias = (file.get_tensor(name) for name in names)
        for name, tensor in zip(names, (weight, bias), strict=True):
            if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
                raise CheckpointError(f"its `{name}` does not hold finite numbers")
        return cls(figures.layer, weight.float(), bias.float(), figures)


def save_heads(folder: Path, record: ExitRecord, heads: Sequence[ExitHead]) -> None:
    """Writes heads and their record to a folder that is there. The heads are those of the record, in its order."""
    assert [head.figures for head in heads] == list(record.heads)
    tensors: dict[str, torch.Tensor] = {}
    for head in heads:
        tensors[f"{head.layer}.weight"] = head.weight.contiguous()
        tensors[f"{head.layer}.bias"] = head.bias.contiguous()
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    record.write(folder)

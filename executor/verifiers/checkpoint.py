"""The tensors of a safetensors checkpoint by name, for what a base model does not load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from transformers.utils import cached_file

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Checkpoint:
    """`files` says which file each tensor is in; a folder's file is a path, a hub id's the name of one."""

    location: str | Path
    files: Mapping[str, str]

    @classmethod
    def of(cls, location: str | Path) -> Checkpoint:
        """Reads the index, or the header of the one file. Raises OSError or ValueError where there is none to read."""
        index = _find(location, _INDEX)
        if index is not None:
            return cls(location, json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        whole = [_WHOLE]
        if isinstance(location, Path):
            whole = sorted(path.name for path in location.glob("*.safetensors"))
        files = {name: file for file in whole for name in _names(location, file)}
        return cls(location, files)

    def tensor(self, name: str) -> torch.Tensor:
        """Raises KeyError where there is no such tensor, OSError where its file cannot be read."""
        with safe_open(str(_path(self.location, self.files[name])), framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor


def _names(location: str | Path, file: str) -> list[str]:
    with safe_open(str(_path(location, file)), framework="pt") as opened:
        return list(opened.keys())


def _path(location: str | Path, file: str) -> Path:
    if Path(file).name != file:
        raise ValueError(f"its index names the file `{file}`, which is not in its own folder")
    found = _find(location, file)
    if found is None:
        raise OSError(f"it has no `{file}`")
    return found


def _find(location: str | Path, file: str) -> Path | None:
    if isinstance(location, Path):
        path = location / file
        return path if path.is_file() else None
    found = cached_file(location, file, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)

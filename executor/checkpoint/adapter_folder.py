"""An adapter folder in PEFT's format: a configuration and safetensors, checked before anything of them is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qpdsl.executor.checkpoint.code_names import parsed
from qpdsl.executor.checkpoint.errors import CheckpointError, ModelError
from qpdsl.executor.checkpoint.lora_config import LoraConfig
from qpdsl.executor.checkpoint.model_folder import content, is_there
from qpdsl.executor.checkpoint.safetensors_header import tensor_shapes

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
# Configurations take a few kilobytes; the ids of trained tokens can make them longer.
_LARGEST_CONFIG = 16 << 20


@dataclass(frozen=True)
class AdapterFolder:
    """The two files of an adapter, each in the folder itself or, in a snapshot of the hub, in that repository's cache.

    `shapes` gives the shape of each tensor by name, as the file itself says. `origin` is what the user calls it.
    """

    path: Path
    origin: str
    config: LoraConfig
    shapes: Mapping[str, tuple[int, ...]]
    files: tuple[str, ...] = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)

    @classmethod
    def of(cls, model: str, path: Path, origin: str | None = None) -> AdapterFolder:
        """Checks a folder; `model` is what the user calls the model that it is for. Raises ModelError."""
        origin = origin or str(path)
        try:
            return cls._checked(path, origin)
        except CheckpointError as error:
            raise adapter_error(model, origin, str(error)) from error
        except OSError as error:
            file = f"`{error.filename}` " if error.filename else "its files "
            raise adapter_error(model, origin, f"{file}cannot be read: {error.strerror or error}") from error

    @classmethod
    def _checked(cls, path: Path, origin: str) -> AdapterFolder:
        if not path.exists():
            raise CheckpointError("there is no such folder")
        if not path.is_dir():
            raise CheckpointError("it is a file, not an adapter folder")
        if not is_there(path, ADAPTER_CONFIG):
            raise CheckpointError(f"it has no {ADAPTER_CONFIG}, so it is no adapter in PEFT's format")
        if (path / ADAPTER_CONFIG).stat().st_size > _LARGEST_CONFIG:
            raise CheckpointError(f"its {ADAPTER_CONFIG} is larger than any is")
        config = LoraConfig.of(parsed(ADAPTER_CONFIG, content(path, ADAPTER_CONFIG)))
        if not is_there(path, ADAPTER_WEIGHTS):
            other = "; it has weights in another format, which can carry code: save it as safetensors"
            has_other = (path / "adapter_model.bin").exists()
            raise CheckpointError(f"it has no {ADAPTER_WEIGHTS}{other if has_other else ''}")
        shapes = tensor_shapes(path / ADAPTER_WEIGHTS)
        if not shapes:
            raise CheckpointError(f"its {ADAPTER_WEIGHTS} holds no tensors")
        return cls(path, origin, config, shapes)


def adapter_error(model: str, adapter: str, reason: str) -> ModelError:
    """What is wrong with an adapter, of the model that it is for."""
    return ModelError(model, f"adapter `{adapter}`: {reason}")

"""The numbers of a model that need not be loaded, nor be whole: by its configuration and the sizes of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qpdsl.errors import UsageError, shorten
from qpdsl.executor.checkpoint.errors import CheckpointError, ModelError
from qpdsl.executor.checkpoint.gguf_families import GGUFModel
from qpdsl.executor.checkpoint.gguf_header import SUFFIX
from qpdsl.executor.checkpoint.model_folder import CONFIG, gguf_file
from qpdsl.executor.checkpoint.safe_files import parsed
from qpdsl.executor.engine.memory.budget import main_memory
from qpdsl.executor.foreign.bounded_file import read_bounded
from qpdsl.grammar.suggest import listed
from qpdsl.model_location import locate
from qpdsl.planner.capacity.architecture import NUMBER_BYTES, Architecture, published_models
from qpdsl.planner.capacity.hardware import Hardware
from qpdsl.planner.cost.device import nominal
from qpdsl.session.user_cache import measured_device


def described_model(model: str) -> Architecture:
    """The numbers of a model: a folder, a GGUF file, a built-in model, a config.json, or one of `published_models`.

    Of a folder only config.json must be there. Nothing is downloaded: of a hub id the configuration must be in the
    hub's cache. Raises ModelError.
    """
    published = published_models().get(model.lower())
    if published is not None:
        return _outlined(model.lower(), published, None)
    try:
        return _on_this_machine(model)
    except CheckpointError as error:
        raise ModelError(model, str(error)) from error
    except OSError as error:
        raise ModelError(model, f"`{error.filename}` cannot be read: {error.strerror or error}") from error


def weights_of(architecture: Architecture, weights: str | None) -> tuple[str, float]:
    """The type and the bytes of all weights: of a type, or so much memory (`140GB`), or by default as they are stored.

    Raises UsageError.
    """
    if weights is None:
        size = architecture.stored_bytes
        kind = architecture.number_type
        return kind, architecture.parameters * NUMBER_BYTES[kind] if size is None else float(size)
    if weights in NUMBER_BYTES:
        return weights, architecture.parameters * NUMBER_BYTES[weights]
    from qpdsl.executor.engine.memory.budget import parse

    try:
        amount = 0 if weights.strip().endswith("%") else parse(weights)
    except ValueError:
        amount = 0
    if amount < 1:
        known = listed(NUMBER_BYTES)
        raise UsageError(f"`--weights` takes {known}, or an amount such as `140GB`, not `{shorten(weights)}`")
    return architecture.number_type, float(amount)


def _on_this_machine(model: str) -> Architecture:
    """Raises CheckpointError, ModelError and OSError."""
    path = Path(model).expanduser()
    if path.suffix == ".json":
        return _outlined(model, _configuration(path), None)
    place = locate(model)
    if isinstance(place, str):
        place = _cached(model)
    if place.is_file() and place.suffix.lower() == SUFFIX:
        return _of_gguf(model, place)
    if not place.is_dir():
        names = listed(published_models(), last="and")
        raise CheckpointError(f"there is no folder or file `{place}`; known without files are {names}")
    if not (place / CONFIG).is_file() and (file := gguf_file(place)) is not None:
        return _of_gguf(model, file)
    sizes = [file.stat().st_size for file in place.glob("*.safetensors")]
    return _outlined(model, _configuration(place / CONFIG), sum(sizes) or None)


def _cached(model: str) -> Path:
    """The folder of a hub id in the hub's cache. Raises CheckpointError."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, CONFIG)
    except HFValidationError:
        found = None
    if not isinstance(found, str):
        raise CheckpointError("it is not on this machine, and nothing is downloaded here; its config.json will do")
    return Path(found).parent


def _of_gguf(model: str, file: Path) -> Architecture:
    gguf = GGUFModel.of(file)
    size = sum(tensor.size for tensor in gguf.header.tensors.values())
    # Blocks are widened where they are multiplied.
    return replace(_outlined(model, gguf.config, size), number_type="fp16")


def _configuration(file: Path) -> Mapping[str, Any]:
    """What a config.json holds. Raises CheckpointError and OSError."""
    if not file.is_file():
        raise CheckpointError(f"there is no file `{file}`")
    return parsed(file.name, read_bounded(file))


def _outlined(model: str, configuration: Mapping[str, Any], stored_bytes: int | None) -> Architecture:
    # Only now, as it loads torch.
    from qpdsl.executor.measure.outline import outline

    return outline(model, configuration, stored_bytes)


HERE = "here"


def hardware_here() -> Hardware:
    """The processor with the threads that it was measured with last; nominal figures where it never was."""
    measured = measured_device("cpu", "float32")
    device = measured or nominal()
    source = (
        "nominal figures; `qpdsl profile` measures this machine"
        if measured is None
        else f"measured by `qpdsl profile` with {device.threads} thread{'' if device.threads == 1 else 's'}"
    )
    return Hardware(HERE, main_memory(), device.bandwidth, {"fp32": device.peak}, f"{device.name}: {source}")

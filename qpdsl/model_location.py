"""Where a model and its adapter lie: a built-in model, a folder, a GGUF file, or a repository of the hub."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from qpdsl import zoo
from qpdsl.executor.checkpoint.adapter_folder import AdapterFolder
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.checkpoint.gguf_header import SUFFIX
from qpdsl.executor.checkpoint.model_folder import ModelFolder
from qpdsl.grammar.model_id import adapter_of, base_of


def locate(model: str) -> Path | str:
    """Where a model id points: a built-in or local folder or a file (a Path), or else a hub id (the string itself).

    A path that does not exist comes back as a Path too, for the loader to refuse. An adapter in the id does not count.
    """
    if model.startswith("zoo/"):
        try:
            return zoo.path(model)
        except ValueError as error:
            raise ModelError(model, str(error)) from error
    return _place(base_of(model))


def locate_adapter(model: str) -> Path | str | None:
    """Where the adapter of a model id points: a folder (a Path) or a hub id; None where the id has no adapter."""
    adapter = adapter_of(model)
    if adapter == "":
        raise ModelError(model, "its adapter has no name")
    return None if adapter is None else _place(adapter)


def _place(name: str) -> Path | str:
    path = Path(name).expanduser()
    looks_like_path = path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1
    looks_like_path = looks_like_path or path.suffix.lower() == SUFFIX
    return path if looks_like_path or path.exists() else name


def stored_weights(models: Mapping[str, str]) -> dict[str, str]:
    """How weights are stored that stay so on a CPU, in words, by the models' names in a program: GGUF, quantized ones.

    Raises ModelError where a model is not there or not whole.
    """
    found: dict[str, str] = {}
    for name, model in models.items():
        location = locate(model)
        if isinstance(location, Path) and (kinds := ModelFolder.of(model, location).kinds) is not None:
            found[name] = kinds
    return found


def check_models(models: Iterable[str]) -> None:
    """Raises ModelError for the first model that is not there or not whole, as far as its files tell unloaded.

    Quick, and loads no torch. Hub ids are not looked up.
    """
    for model in dict.fromkeys(models):
        location = locate(model)
        if isinstance(location, Path):
            ModelFolder.of(model, location)
        adapter = locate_adapter(model)
        if isinstance(adapter, Path):
            AdapterFolder.of(model, adapter)

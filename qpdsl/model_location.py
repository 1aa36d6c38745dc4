"""Where a model lies: a built-in model, a folder, or a repository of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from qpdsl import zoo
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.checkpoint.model_folder import ModelFolder


def locate(model: str) -> Path | str:
    """Where a model id points: a built-in or local folder (a Path), or else a hub id (the string itself).

    A path that does not exist comes back as a Path too, for the loader to refuse.
    """
    if model.startswith("zoo/"):
        try:
            return zoo.path(model)
        except ValueError as error:
            raise ModelError(model, str(error)) from error
    path = Path(model).expanduser()
    looks_like_path = path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1
    return path if looks_like_path or path.exists() else model


def check_models(models: Iterable[str]) -> None:
    """Raises ModelError for the first model that is not there or not whole, as far as its files tell unloaded.

    Quick, and loads no torch. Hub ids are not looked up.
    """
    for model in dict.fromkeys(models):
        location = locate(model)
        if isinstance(location, Path):
            ModelFolder.of(model, location)

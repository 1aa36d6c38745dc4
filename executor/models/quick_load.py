"""Loading a model: from what is known of it, where it was loaded before, else as `load.py` does.

Nothing here imports transformers' models, which takes seconds.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import torch

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.checkpoint.hub_snapshot import cached_snapshot
from qpdsl.executor.checkpoint.model_folder import ModelFolder, isolated
from qpdsl.executor.engine.memory.budget import trim_heap
from qpdsl.executor.kernels.llvm.panel_file import PanelWriter
from qpdsl.executor.models.known_model import DTYPES, Place, keep_panels
from qpdsl.executor.models.text_model import PagedTextModel, TextModel
from qpdsl.executor.verifiers.registry import BY_CONFIGURATION
from qpdsl.grammar.words import KVType


def load(
    name: str,
    location: str | Path,
    device: str,
    dtype: str | None,
    kv_type: KVType | None = None,
    kind: str | None = None,
    adapter: str | Path | None = None,
    slow: Callable[[str], None] | None = None,
) -> PagedTextModel:
    """A model, the same as `load.load` gives. Raises ModelError."""
    loaded = None
    if device == "cpu" and adapter is None:
        loaded = _again(name, location, dtype, kv_type, kind)
    if loaded is None:
        from qpdsl.executor.models import load as modules

        loaded = modules.load(name, location, device, dtype, kv_type, kind, adapter, slow, remember=True)
        # Modules refer to each other.
        gc.collect()
    # What it draws with is made by now, and with it all that runs code once.
    _ = loaded.paged.panel_head
    trim_heap()
    return loaded


def score_with(
    model: TextModel,
    location: str | Path,
    dtype: str | None,
    kind: str,
    adapter: str | Path | None = None,
) -> None:
    """Makes a verifier of a loaded model. Raises ModelError where it is one of another kind, or needs a head."""
    if model.verifier is None:
        # It is loaded once more, to be tried as a verifier: a model that generates has given its layers away. A CPU has
        # room for that, whatever is on the device.
        tried = load(model.name, location, "cpu", dtype, None, kind, adapter)
        if not tried.writes:
            raise ModelError(model.name, "as a verifier: it is loaded already to generate with, without its own head")
        model.verifier = tried.verifier
    elif kind not in (BY_CONFIGURATION, model.kind):
        raise ModelError(model.name, f"it is asked for as a verifier of kind {kind}, and it is loaded as {model.kind}")


def _again(
    name: str, location: str | Path, dtype: str | None, kv_type: KVType | None, kind: str | None
) -> PagedTextModel | None:
    path = location if isinstance(location, Path) else cached_snapshot(location)
    if path is None:
        return None
    try:
        folder = ModelFolder.of(name, path)
        floats = DTYPES[dtype] if dtype else torch.float32 if folder.gguf is None else None
        place = Place.of(folder, floats, kind)
        model = None if place is None else place.known()
        if place is None or model is None:
            return None
        shelf = place.shelf()
        with isolated(folder) as files:
            loaded = model.loaded(name, folder, files, floats, kv_type, shelf)
        if isinstance(shelf, PanelWriter):
            keep_panels(loaded.paged, shelf)
        return loaded
    except Exception:  # whatever files that are damaged since provoke; the load itself says what is wrong
        return None

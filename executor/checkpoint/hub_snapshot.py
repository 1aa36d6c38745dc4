"""The folder of a model or adapter of the Hugging Face hub: its files in the hub client's cache, all of one version."""

from __future__ import annotations

import json
from pathlib import Path

from qpdsl.executor.checkpoint.adapter_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS, adapter_error
from qpdsl.executor.checkpoint.errors import CheckpointError, ModelError
from qpdsl.executor.checkpoint.gguf_header import SUFFIX
from qpdsl.executor.checkpoint.model_folder import INDEX, TEXTS, WEIGHTS, only_gguf
from qpdsl.executor.foreign.bounded_file import read_bounded


def snapshot(model: str, name: str) -> Path:
    """Fetches the files of the hub id `name` that are not in the cache yet: configuration, tokenizer and safetensors.

    Of a repository that has none of these but one GGUF file, that file. `model` is what the user calls the model.
    Raises ModelError.
    """
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, allow_patterns=[*TEXTS, ADAPTER_CONFIG, INDEX]))
        folder = Path(snapshot_download(name, revision=folder.name, allow_patterns=[WEIGHTS, *_shards(folder)]))
        if not any(folder.glob("*.safetensors")) and (gguf := _gguf(name, folder)) is not None:
            return Path(snapshot_download(name, revision=folder.name, allow_patterns=gguf))
        return folder
    except CheckpointError as error:
        raise ModelError(model, str(error)) from error
    except Exception as error:  # the client raises its own errors and those of the network and the disk
        raise ModelError(model, _reason(error)) from error


def adapter_snapshot(model: str, name: str) -> Path:
    """Fetches the files of an adapter, the hub id `name`, that are not in the cache yet. Raises ModelError."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[ADAPTER_CONFIG, ADAPTER_WEIGHTS]))
    except Exception as error:
        why = f"looked up as a hub id, as there is no such folder: {_reason(error)}"
        raise adapter_error(model, name, why) from error


def cached_snapshot(name: str) -> Path | None:
    """The folder of a model or an adapter in the cache; None where it is not there."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except Exception:
        return None


def _gguf(name: str, folder: Path) -> list[str] | None:
    """The GGUF file of a repository, or its parts; None where it has none. Raises CheckpointError for several."""
    from huggingface_hub import constants, list_repo_files

    if constants.HF_HUB_OFFLINE:
        found = [file.name for file in folder.iterdir()]
    else:
        found = list_repo_files(name, revision=folder.name)
    names = sorted(file for file in found if file.lower().endswith(SUFFIX) and "/" not in file)
    remedy = f"fetch the one that is meant, `hf download {name} FILE`, and give the path that this prints"
    return only_gguf(names, "its repository", remedy) if names else None


def _shards(folder: Path) -> list[str]:
    """The files that the index names, if there is one; `ModelFolder` tells what is wrong with it."""
    try:
        files = json.loads(read_bounded(folder / INDEX))["weight_map"].values()
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []
    return sorted({name for name in files if isinstance(name, str)})


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__

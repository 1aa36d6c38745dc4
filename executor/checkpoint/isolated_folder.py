"""The folder that transformers is given in the place of a model's own: the model's files, and no others.

What transformers looks for besides, such as weights in other formats, adapters or Python files, is not there, so it
cannot be taken for a part of the model.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from qpdsl.executor.checkpoint.code_names import without_code
from qpdsl.executor.checkpoint.model_folder import CONFIG, INDEX, TOKENIZER_CONFIG, ModelFolder


@contextlib.contextmanager
def isolated(folder: ModelFolder) -> Iterator[Path]:
    """A folder of links to the files of a model, while the block runs; the names of code are left out of it.

    Of a GGUF file it has the configuration alone: the rest is read from the file itself.
    """
    with tempfile.TemporaryDirectory(prefix="qpdsl-model-") as place:
        path = Path(place)
        if folder.gguf is not None:
            (path / CONFIG).write_text(json.dumps(folder.config), encoding="utf-8")
            yield path
            return
        for name in folder.files:
            (path / name).symlink_to((folder.path / name).resolve())
        rewritten = {CONFIG: without_code(folder.config)}
        if folder.tokenizer_config:
            rewritten[TOKENIZER_CONFIG] = without_code(folder.tokenizer_config)
        if INDEX in folder.files:
            rewritten[INDEX] = {"metadata": {}, "weight_map": dict(folder.tensors)}
        for name, content in rewritten.items():
            (path / name).unlink()
            (path / name).write_text(json.dumps(content), encoding="utf-8")
        yield path


@contextlib.contextmanager
def no_hub() -> Iterator[None]:
    """Nothing is fetched from the hub while the block runs: all of a model lies in its folder by then."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before

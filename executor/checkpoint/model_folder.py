"""A model folder, or a GGUF file: what makes up the model, found and checked before any of it is loaded.

Transformers is given another folder in its place, with these files and no others (`isolated`). What it looks for
besides, such as weights in other formats, adapters or Python files, is not there, so it cannot be taken for a part of
the model.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from qpdsl.executor.checkpoint.errors import CheckpointError, ModelError
from qpdsl.executor.checkpoint.gguf_families import GGUFModel
from qpdsl.executor.checkpoint.gguf_header import SUFFIX, part_names
from qpdsl.executor.checkpoint.quantization_config import QuantizedLayers, quantized_layers
from qpdsl.executor.checkpoint.safe_files import check_configuration, is_pointer, parsed, tensor_shapes, without_code
from qpdsl.executor.foreign.bounded_file import MAX_CONFIGURATION, MAX_VOCABULARY, check_size, read_bounded

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# The files of a model besides its weights. Whatever else lies in the folder is not read.
TEXTS = (
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
# Of these one at least is needed to have a tokenizer.
_VOCABULARIES = (TOKENIZER, "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
# What llama.cpp calls the files of encoders for images and sound.
_ENCODERS = "mmproj"
# What config.json calls the settings of encoders, and what these take.
ENCODERS = {"vision_config": "images", "vq_config": "images", "audio_config": "sound"}
# So many of many GGUF files are named.
_SHOWN = 6
_MAPPINGS = tuple(name for name in TEXTS if name.endswith(".json") and name not in (TOKENIZER, "vocab.json"))
# How the tensors of most models begin that write text.
_OF_WRITERS = ("model.", "lm_head.")


@dataclass(frozen=True)
class ModelFolder:
    """The files of a model, each in the folder itself or, in a snapshot of the hub, in that repository's cache.

    `config` is the content of config.json as it stands there. `tensors` gives the file of each tensor by name, and
    `shapes` its shape, as the weight files themselves say. `files` are all files that are read, by name. A model in a
    GGUF file is all in that file, `gguf`; its `tensors` are not among these.
    """

    path: Path
    config: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    tensors: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    files: tuple[str, ...]
    gguf: GGUFModel | None = None

    @classmethod
    def of(cls, name: str, path: Path, *, weights: bool = True) -> ModelFolder:
        """Checks a folder; `name` is what the user calls the model. Without `weights` these are not looked at.

        Raises ModelError.
        """
        try:
            return cls._checked(path, with_weights=weights)
        except CheckpointError as error:
            raise ModelError(name, str(error)) from error
        except OSError as error:
            file = f"`{error.filename}` " if error.filename else "its files "
            raise ModelError(name, f"{file}cannot be read: {error.strerror or error}") from error

    @property
    def only_writes(self) -> bool:
        """Whether its files surely are those of a model that writes text, and hold no head that scores."""
        if self.gguf is not None:
            return True
        named = "".join(self.config.get("architectures") or ())
        return named.endswith("ForCausalLM") and all(name.startswith(_OF_WRITERS) for name in self.tensors)

    @classmethod
    def _checked(cls, path: Path, *, with_weights: bool) -> ModelFolder:
        if not path.exists():
            what = "file" if path.suffix.lower() == SUFFIX else "folder"
            beside = [entry.name for entry in path.parent.glob(f"*{path.suffix}")] if path.suffix else []
            near = get_close_matches(path.name, sorted(beside), n=1)
            meant = f"; did you mean `{path.with_name(near[0])}`?" if near else ""
            raise CheckpointError(f"there is no {what} `{path}`{meant}")
        if path.suffix.lower() == SUFFIX and path.is_file():
            return cls._of_gguf(path)
        if not path.is_dir():
            raise CheckpointError(f"`{path}` is a file, neither a model folder nor a GGUF file")
        if (path / "adapter_config.json").exists():
            raise CheckpointError(
                "it is an adapter (adapter_config.json), not a whole model; give its base model as the model, and the "
                "adapter by `--adapter NAME=FOLDER` or `adapter=`"
            )
        if (file := gguf_file(path)) is not None:
            return cls._of_gguf(file)
        if not (path / CONFIG).is_file():
            raise CheckpointError(f"`{path}` has no config.json, so it is no Hugging Face model folder")
        texts = tuple(name for name in TEXTS if is_there(path, name))
        for name in texts:
            check_size(path / name, MAX_VOCABULARY if name in _VOCABULARIES else MAX_CONFIGURATION)
        mappings = {name: parsed(name, content(path, name)) for name in _MAPPINGS if name in texts}
        tokenizer_config = mappings.get(TOKENIZER_CONFIG, {})
        check_configuration(mappings[CONFIG], tokenizer_config)
        _check_kinds(mappings[CONFIG], tokenizer_config)
        shapes: dict[str, tuple[int, ...]] = {}
        tensors: dict[str, str] = {}
        weights = _weights(path) if with_weights else ()
        for name in weights:
            for tensor, shape in tensor_shapes(path / name).items():
                if tensor in tensors:
                    raise CheckpointError(f"`{tensor}` is in two of its files, `{tensors[tensor]}` and `{name}`")
                tensors[tensor], shapes[tensor] = name, shape
        if with_weights:
            _check_index(path, tensors)
        if not any(name in texts for name in _VOCABULARIES):
            raise CheckpointError(f"it has no tokenizer: `{TOKENIZER}` is missing in `{path}`")
        index = (INDEX,) if with_weights and WEIGHTS not in weights else ()
        return cls(path, mappings[CONFIG], tokenizer_config, tensors, shapes, (*texts, *index, *weights))

    @classmethod
    def _of_gguf(cls, file: Path) -> ModelFolder:
        gguf = GGUFModel.of(file)
        return cls(file.parent, gguf.config, {}, {}, {}, tuple(gguf.header.parts), gguf)

    @property
    def quantized(self) -> QuantizedLayers | None:
        """The linear layers of safetensors files that are read as they are stored; None where there are none."""
        return quantized_layers(self.config, self.tensors)

    @property
    def kinds(self) -> str | None:
        """How weights are stored that stay so on a CPU, in words; None where they are floats."""
        return self.gguf.kinds if self.gguf is not None else None if (own := self.quantized) is None else own.kinds

    @property
    def notes(self) -> tuple[str, ...]:
        """What is left out of the model, for people."""
        taken = sorted({kind for name, kind in ENCODERS.items() if self.config.get(name) is not None})
        return (f"it also takes {' and '.join(taken)}; of it only the language model runs here",) if taken else ()

    def file(self, tensor: str) -> Path:
        """The file of a tensor. Raises KeyError where there is no such tensor."""
        return self.path / self.tensors[tensor]


def gguf_file(folder: Path) -> Path | None:
    """The GGUF file of a folder without other weights, the first of several parts; None where there is none.

    Raises CheckpointError for several.
    """
    found = sorted(file.name for file in folder.iterdir() if file.suffix.lower() == SUFFIX)
    if not found or any(folder.glob("*.safetensors")) or is_there(folder, INDEX):
        return None
    names = only_gguf(found, f"`{folder}`", "give the path of the one that is meant")
    # A part that is missing is told when the others are read.
    there = [name for name in names if is_there(folder, name)]
    return folder / there[0] if there else None


def only_gguf(names: Sequence[str], place: str, remedy: str) -> list[str]:
    """The one of the GGUF files of a place, or all parts of one that was split.

    The parts of a model that see or hear (`mmproj…`) do not count beside others. Raises CheckpointError with the
    `remedy` where there are several.
    """
    texts = [name for name in names if not name.lower().startswith(_ENCODERS)] or names
    models = {tuple(part_names(name)) for name in texts}
    if len(models) > 1:
        shown = ", ".join(f"`{name}`" for name in texts[:_SHOWN])
        more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
        raise CheckpointError(f"{place} has {len(texts)} GGUF files ({shown}{more}); {remedy}")
    return list(models.pop())


def _check_kinds(config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> None:
    """Refuses values of another kind than transformers takes for granted. Raises CheckpointError."""
    architectures, model_type = config.get("architectures"), config.get("model_type")
    if not isinstance(model_type, str | None):
        raise CheckpointError("its config.json has a `model_type` that is no text")
    names = [] if architectures is None else architectures
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError("its config.json has `architectures` that are no list of names")
    if not isinstance(tokenizer_config.get("model_max_length"), int | float | None):
        raise CheckpointError("its tokenizer_config.json has a `model_max_length` that is no number")


def is_there(folder: Path, name: str) -> bool:
    """Whether a file is there to be read. Raises CheckpointError where it links out of the folder, or to nothing."""
    path = folder / name
    if not os.path.lexists(path):
        return False
    target = path.resolve()
    if not any(target.is_relative_to(root) for root in _roots(folder)):
        raise CheckpointError(f"`{name}` is a link to `{target}`, outside the folder; put the file itself there")
    if not path.is_file():
        raise CheckpointError(f"`{name}` is no file" if path.exists() else f"`{name}` is a link to nothing")
    return True


def _roots(folder: Path) -> tuple[Path, ...]:
    """Where the files of a folder may lie: in it; a snapshot in the hub's cache consists of links to blobs."""
    own = folder.resolve()
    if own.parent.name != "snapshots":
        return (own,)
    repository = own.parents[1]
    return own, repository / "blobs", repository.parent / "blobs"


def content(folder: Path, name: str, most: int = MAX_CONFIGURATION) -> bytes:
    """What a file of a folder holds, of at most so many bytes.

    Raises CheckpointError where that is not the file itself, and OSError.
    """
    data = read_bounded(folder / name, most)
    if is_pointer(data):
        raise CheckpointError(f"`{name}` is a Git LFS pointer; fetch the file itself with `git lfs pull`")
    return data


def _weights(folder: Path) -> tuple[str, ...]:
    """The weight files by name, as transformers chooses them. Raises CheckpointError."""
    if is_there(folder, WEIGHTS):
        return (WEIGHTS,)
    if is_there(folder, INDEX):
        names = tuple(sorted(set(_weight_map(folder).values())))
        for name in names:
            if Path(name).name != name or "\\" in name:
                raise CheckpointError(f"`{INDEX}` names `{name}`, which is not a file of the folder itself")
            if not name.endswith(".safetensors"):
                raise CheckpointError(
                    f"`{INDEX}` names `{name}`, and weights are read from .safetensors files only "
                    "(other formats can carry code)"
                )
            if not is_there(folder, name):
                raise CheckpointError(f"`{INDEX}` names `{name}`, and there is no such file")
        return names
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if others:
        raise CheckpointError(
            f"`{folder}` has `{others[0]}`, but neither `{WEIGHTS}` nor `{INDEX}`, which say what the weights are"
        )
    raise CheckpointError(f"`{folder}` has no .safetensors file (other weight formats can carry code)")


def _weight_map(folder: Path) -> Mapping[str, str]:
    weights = parsed(INDEX, content(folder, INDEX)).get("weight_map")
    if not isinstance(weights, dict) or not weights or not all(isinstance(name, str) for name in weights.values()):
        raise CheckpointError(f"`{INDEX}` has no `weight_map` of tensors to files")
    return weights


def _check_index(folder: Path, tensors: Mapping[str, str]) -> None:
    """Refuses an index that says of a tensor what its file does not."""
    if WEIGHTS in tensors.values() or not is_there(folder, INDEX):
        return
    for tensor, name in _weight_map(folder).items():
        if tensors.get(tensor) != name:
            raise CheckpointError(f"`{INDEX}` says that `{tensor}` is in `{name}`, and it is not")


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

"""The tokenizer of a GGUF file. It is made by transformers, which takes seconds, and kept in the user's cache folder.

Nothing depends on the cache: what is not there, is damaged or cannot be written is made anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import Regex, Tokenizer, pre_tokenizers

from qpdsl.executor.checkpoint.cache_folder import cache_folder
from qpdsl.executor.checkpoint.errors import CheckpointError
from qpdsl.executor.checkpoint.gguf_header import GGUFHeader
from qpdsl.executor.foreign.bounded_file import MAX_VOCABULARY, read_bounded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# To be counted up where what is kept changes.
_FORM = 1
_TOKENIZER, _SETTINGS = "tokenizer.json", "settings.json"
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
# How text is split before its bytes are merged, by llama.cpp's names (`llama-vocab.cpp`). Transformers knows some, and
# takes the others for GPT-2's.
_AS_GPT2 = ("gpt-2", "mpt", "olmo")
_DIGITS_APART = ("codeshell", "command-r", "minerva-7b", "refact", "smollm", "starcoder")
_AS_LLAMA3 = ("chatglm-bpe", "glm4")
_AS_DEEPSEEK3 = ("deepseek-v3", "hunyuan-dense")
# Of `_BEGIN` texts begin with the token for that, if the file does not say whether. Of `_WHOLE_WORDS` a word that is a
# token is that token, whatever the merges make of it.
_BEGIN = ("falcon-h1", "falcon3", "lfm2", "llama-bpe", "llama-v3", "llama3", "midm-2.0", "pixtral", "tekken")
_WHOLE_WORDS = (*_BEGIN, "glm4")


def tokenizer(header: GGUFHeader, first_time: Callable[[], None] | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer of a file; `first_time` is called before it is made. Raises CheckpointError."""
    place = _place(header)
    if place is not None and (found := _loaded(place)) is not None:
        return found
    if first_time is not None:
        first_time()
    with tempfile.TemporaryDirectory(prefix="qpdsl-gguf-") as made:
        _make(header, Path(made))
        if place is not None:
            _keep(Path(made), place)
        loaded = _loaded(Path(made))
    if loaded is None:
        raise CheckpointError(f"the tokenizer of `{header.path.name}` cannot be kept for this run")
    return loaded


def kept_backend(header: GGUFHeader) -> Tokenizer | None:
    """The Rust tokenizer of a file whose tokenizer was made before; None where it is not kept."""
    place = _place(header)
    try:
        return None if place is None else Tokenizer.from_buffer(_kept(place)[0])
    except Exception:  # whatever a damaged file makes of the library
        return None


def _place(header: GGUFHeader) -> Path | None:
    """Where it is kept, by what it depends on: all of the file but its tensors, and the libraries."""
    cache = cache_folder()
    parts = (header.digest, _FORM, version("transformers"), tokenizers.__version__)
    return None if cache is None else cache / "gguf" / blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _kept(place: Path) -> tuple[bytes, dict[str, Any]]:
    """The tokenizer in a folder, as JSON, and its settings. Raises whatever a folder that is not whole provokes."""
    settings: dict[str, Any] = json.loads(read_bounded(place / _SETTINGS))
    content = read_bounded(place / _TOKENIZER, MAX_VOCABULARY)
    if settings.pop("digest") != blake2b(content).hexdigest():
        raise CheckpointError(f"`{place / _TOKENIZER}` was changed")
    return content, settings


def _loaded(place: Path) -> PreTrainedTokenizerFast | None:
    """What is kept in a folder; None where it is not whole."""
    from transformers import PreTrainedTokenizerFast

    try:
        _, settings = _kept(place)
        return PreTrainedTokenizerFast(tokenizer_file=str(place / _TOKENIZER), **settings)
    except Exception:  # whatever a damaged file makes of the libraries
        return None


def _keep(made: Path, place: Path) -> None:
    """Moves a made tokenizer to its place, whole or not at all; where that fails it stays as it is."""
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        whole = Path(tempfile.mkdtemp(prefix=f"{place.name}-", dir=place.parent))
        try:
            for name in (_TOKENIZER, _SETTINGS):
                shutil.copy(made / name, whole / name)
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            os.rename(whole, place)
        finally:
            shutil.rmtree(whole, ignore_errors=True)


def _make(header: GGUFHeader, place: Path) -> None:
    """Writes the tokenizer of a file into a folder. Raises CheckpointError."""
    from transformers import PreTrainedTokenizerFast

    split, name = _split(header), header.metadata.get("tokenizer.ggml.pre")
    begins = {"add_bos_token": True} if name in _BEGIN else {}
    try:
        (place / "model.gguf").symlink_to(header.path.resolve())
        # What the file says goes before what it is given here.
        made = PreTrainedTokenizerFast.from_pretrained(place, gguf_file="model.gguf", **begins)
    except Exception as error:  # transformers raises whatever the file provokes
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise CheckpointError(f"the tokenizer of `{header.path.name}` cannot be read: {lines[0]}") from error
    backend: Tokenizer = made.backend_tokenizer
    if split is not None:
        backend.pre_tokenizer = split
    if name in _WHOLE_WORDS:
        backend.model.ignore_merges = True
    content = _without_foreign(backend, len(header.metadata["tokenizer.ggml.tokens"])).encode()
    named = ((name, getattr(made, name)) for name in _SPECIAL)
    settings = {name: str(token) for name, token in named if token in header.metadata["tokenizer.ggml.tokens"]}
    settings |= {"chat_template": made.chat_template} if made.chat_template else {}
    (place / _TOKENIZER).write_bytes(content)
    settings["digest"] = blake2b(content).hexdigest()
    (place / _SETTINGS).write_text(json.dumps(settings), encoding="utf-8")


def _without_foreign(backend: Tokenizer, count: int) -> str:
    """The tokenizer as JSON, without tokens that transformers adds to the file's own `count`."""
    if all(id < count for id in backend.get_added_tokens_decoder()):
        return str(backend.to_str())
    data = json.loads(backend.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] < count]
    return json.dumps(data, ensure_ascii=False)


def _split(header: GGUFHeader) -> pre_tokenizers.PreTokenizer | None:
    """What transformers does not put into the tokenizer itself. Raises CheckpointError where nobody knows it."""
    kind, name = header.metadata["tokenizer.ggml.model"], header.metadata.get("tokenizer.ggml.pre")
    if kind == "llama":
        if header.architecture == "llama" and header.metadata.get("tokenizer.ggml.add_space_prefix") is False:
            raise CheckpointError(f"the tokenizer of `{header.path.name}` puts no space first, which is not read")
        return None
    if kind == "gemma4":
        return None
    if kind != "gpt2":
        raise CheckpointError(f"the tokenizer of `{header.path.name}` is of a kind that is not read, `{kind}`")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if name in _DIGITS_APART:
        as_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), as_gpt2])
    if name in _AS_LLAMA3:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_LLAMA3), behavior="isolated"), bytes_only])
    if name in _AS_DEEPSEEK3:
        splits = [pre_tokenizers.Split(Regex(part), behavior="isolated") for part in _DEEPSEEK3]
        return pre_tokenizers.Sequence([*splits, bytes_only])
    if name not in _AS_GPT2 and name not in _known_splits():
        raise CheckpointError(
            f"the tokenizer of `{header.path.name}` splits text in a way that is not known here "
            f"(`tokenizer.ggml.pre` is `{name}`)"
        )
    return None


def _known_splits() -> frozenset[str]:
    """Those that transformers sets by itself."""
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:
        return frozenset()
    return frozenset(GGUF_PRE_TOKENIZER_SPLITS)

"""What tells models apart: a digest of the files that make up a model."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from qpdsl.executor.checkpoint.adapter_folder import AdapterFolder
from qpdsl.executor.checkpoint.hub_snapshot import cached_snapshot
from qpdsl.executor.checkpoint.model_folder import ModelFolder

# Files up to so many bytes count in full; of larger ones the header and so many blocks of so many bytes.
_WHOLE = 64 << 20
_BLOCK = 64 << 10
_SAMPLES = 32


def model_digest(folder: ModelFolder | AdapterFolder) -> str:
    """A digest of every file of a model, or of an adapter, that is read: quick for weights of any size.

    Configuration and tokenizer files count in full, and so do weight files up to 64 MiB. Of larger ones the size, the
    header (every tensor's name, type, shape and place) and 32 blocks spread evenly over the file count.
    """
    state = blake2b(digest_size=16)
    gguf = folder.gguf if isinstance(folder, ModelFolder) else None
    for name in sorted(folder.files):
        path = folder.path / name
        size = path.stat().st_size
        state.update(f"{name}\0{size}\0".encode())
        with path.open("rb") as file:
            if gguf is not None:
                header = gguf.header.parts[name]
            else:
                header = _header_length(file.read(8)) if path.suffix == ".safetensors" else size
            for start, length in _pieces(size, header):
                file.seek(start)
                state.update(file.read(length))
    return state.hexdigest()


def _header_length(first: bytes) -> int:
    """A safetensors file starts with the length of its JSON header, which cannot exceed 100 MB."""
    return 8 + min(int.from_bytes(first, "little"), 100_000_000)


def _pieces(size: int, header: int) -> Iterable[tuple[int, int]]:
    if size <= _WHOLE:
        return [(0, size)]
    last = size - _BLOCK
    return [(0, header), *((index * last // (_SAMPLES - 1), _BLOCK) for index in range(_SAMPLES))]


def location_digest(location: Path | str, adapter: Path | str | None = None) -> str:
    """A digest of what a located model and its adapter hold: folders, or hub ids whose files are in the cache by now.

    Raises ModelError where a folder is not whole.
    """
    folder = _folder(location)
    own = "unknown" if folder is None else model_digest(ModelFolder.of(str(location), folder))
    if adapter is None:
        return own
    folder = _folder(adapter)
    merged = "unknown" if folder is None else model_digest(AdapterFolder.of(str(location), folder))
    return f"{own} with {merged}"


def tokens_digest(location: Path | str) -> str:
    """The same of the tokenizer of a model on a server, whose weights do not count. Raises ModelError."""
    folder = _folder(location)
    return "unknown" if folder is None else model_digest(ModelFolder.of(str(location), folder, weights=False))


def _folder(location: Path | str) -> Path | None:
    return location if isinstance(location, Path) else cached_snapshot(location)

"""Compiled kernels, kept in the user's cache folder: compiling takes seconds, and most runs need the same.

An entry is named by a digest of all that its code depends on, and begins with a digest of its own contents. What is not
there, is damaged or cannot be written is compiled anew.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import cache
from hashlib import blake2b
from pathlib import Path

import llvmlite
from llvmlite import binding

from qpdsl.executor.checkpoint.cache_folder import cache_folder

_DIGEST_BYTES = 32
# Entries that were not used for longest are removed beyond these bytes.
_MOST_BYTES = 64 << 20


def find(what: str) -> bytes | None:
    """The object code of the kernels that `what` describes; None where it is not kept."""
    path = _path(what)
    if path is None:
        return None
    with contextlib.suppress(OSError):
        kept = path.read_bytes()
        digest, code = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
        if digest == blake2b(code, digest_size=_DIGEST_BYTES).digest():
            with contextlib.suppress(OSError):
                os.utime(path)
            return code
    return None


def keep(what: str, code: bytes) -> None:
    """Keeps object code, whole or not at all."""
    path = _path(what)
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(file, "wb") as target:
                target.write(blake2b(code, digest_size=_DIGEST_BYTES).digest() + code)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
        _trim(path.parent)


def _trim(folder: Path) -> None:
    entries = sorted(((entry.stat().st_mtime, entry.stat().st_size, entry) for entry in folder.iterdir()), reverse=True)
    total = 0
    for _, size, entry in entries:
        total += size
        if total > _MOST_BYTES:
            entry.unlink(missing_ok=True)


def _path(what: str) -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    return folder / "kernels" / blake2b(f"{_surroundings()}\n{what}".encode(), digest_size=20).hexdigest()


def digest_of_sources(folder: Path) -> str:
    digest = blake2b(digest_size=20)
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


# All sources that kernels are written with, and the numbers that are compiled into them. The digest is taken when they
# are imported: files that change later are not what runs.
_SOURCES = digest_of_sources(Path(__file__).parents[2])


@cache
def _surroundings() -> str:
    """What all kernels depend on: their sources, LLVM, and the processor."""
    features = binding.get_host_cpu_features().flatten()
    return f"{_SOURCES} {llvmlite.__version__} {binding.get_host_cpu_name()} {features}"

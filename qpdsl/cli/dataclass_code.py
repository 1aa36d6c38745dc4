"""The methods of dataclasses, compiled once and kept.

`dataclass` writes the methods of each class as text, which Python compiles at every start. A run has 800 such classes
of ours and of torch's, and this takes longer than everything else in our own modules. So the code is kept, by its text,
beside the compiled modules, and is as trusted as these. What is not kept, or damaged, is compiled as ever.
"""

from __future__ import annotations

import contextlib
import dataclasses
import marshal
import sys
from collections.abc import Iterator
from hashlib import blake2b
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import Any

_DIGEST_BYTES = 32
# Texts of classes that have changed since are dropped when there are more.
_MAX_TEXTS = 20_000
_NAME = "dataclasses.code"


@contextlib.contextmanager
def code_kept() -> Iterator[None]:
    """Inside the block dataclasses are made with the code that is kept; what was compiled anew is kept after it."""
    place = _place()
    kept = {} if place is None else _read(place)
    new: dict[str, bytes] = {}

    def run(text: str, *names: Any) -> None:
        """As `exec`, of the text of methods."""
        if (known := kept.get(text)) is not None:
            code: CodeType = marshal.loads(known)
        else:
            code = compile(text, "<string>", "exec", dont_inherit=True)
            new[text] = marshal.dumps(code)
        exec(code, *names)

    # The module has no such name of its own, and finds this one before that of Python.
    module: Any = dataclasses
    module.exec = run
    try:
        yield
    finally:
        with contextlib.suppress(AttributeError):
            del module.exec
    if place is not None and new and not sys.dont_write_bytecode:
        _write(place, new if len(kept) + len(new) > _MAX_TEXTS else kept | new)


def _place() -> Path | None:
    """Where it lies: for each version of Python, and each way to compile, another file."""
    compiled = None if __spec__ is None else __spec__.cached
    return None if compiled is None else Path(f"{compiled}.{_NAME}")


def _read(place: Path) -> dict[str, bytes]:
    """Code by the text of it; none where the file is not whole."""
    try:
        content = place.read_bytes()
    except OSError:
        return {}
    digest, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if digest != _digest(content):
        return {}
    found: dict[str, bytes] = marshal.loads(content)
    return found


def _write(place: Path, codes: dict[str, bytes]) -> None:
    from qpdsl.executor.checkpoint.cache_folder import keep_file

    content = marshal.dumps(codes)
    keep_file(place, _digest(content) + content)


def _digest(content: bytes) -> bytes:
    """Another one for each form of compiled code."""
    return blake2b(content, key=MAGIC_NUMBER, digest_size=_DIGEST_BYTES).digest()

"""What a safetensors file says of itself: the names and shapes of its tensors, and whether the file is whole.

The file starts with the length of its header (eight bytes, little-endian) and the header, which is JSON; the tensors
follow. Nothing of the tensors is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from qpdsl.executor.checkpoint.errors import CheckpointError

# The format allows no longer one.
_LONGEST = 100_000_000
_POINTER = b"version https://git-lfs"


def is_pointer(start: bytes) -> bool:
    """Whether a file that begins so stands for one in Git LFS that was not fetched."""
    return start.startswith(_POINTER)


def tensor_shapes(path: Path) -> Mapping[str, tuple[int, ...]]:
    """The shape of each tensor by name. Raises CheckpointError where the file is no whole safetensors file."""
    name = path.name
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(len(_POINTER))
        if is_pointer(start):
            raise CheckpointError(f"`{name}` is a Git LFS pointer; fetch the file itself with `git lfs pull`")
        length = int.from_bytes(start[:8], "little")
        if start[8:9] != b"{" or not 2 <= length <= _LONGEST:
            raise CheckpointError(f"`{name}` is no safetensors file")
        if 8 + length > size:
            raise CheckpointError(
                f"`{name}` is cut off: it has {size:,} bytes, and its header alone takes {8 + length:,}"
            )
        file.seek(8)
        header = file.read(length)
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        shapes = {tensor: tuple(int(width) for width in entry["shape"]) for tensor, entry in entries.items()}
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"`{name}` is no safetensors file: its header is damaged") from error
    if 8 + length + end != size:
        wrong = "is cut off" if 8 + length + end > size else "is too long"
        raise CheckpointError(f"`{name}` {wrong}: it has {size:,} bytes, and its header tells of {8 + length + end:,}")
    return shapes

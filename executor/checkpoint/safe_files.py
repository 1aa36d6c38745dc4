"""A checkpoint's files, read so that nothing in them is run: configurations without names of code, headers of weights.

A configuration may name an attention, a layer of experts or a kernel, which transformers then looks for on the hub and
runs. Such names say how a model is computed and not what, so they are taken out, wherever they stand, and the model is
computed in the way that transformers has itself. What cannot be taken out without changing the model is refused.

A safetensors file starts with the length of its header (eight bytes, little-endian) and the header, which is JSON: the
names and shapes of its tensors, and whether the file is whole. The tensors follow; nothing of them is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qpdsl.executor.checkpoint.errors import CheckpointError

_NEUTRAL = frozenset(
    {
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_internal",
        "_attn_implementation_autoset",
        "experts_implementation",
        "_experts_implementation",
        "_experts_implementation_internal",
        "auto_map",
        "custom_generate",
        "custom_pipelines",
        "distributed_config",
        "fusion_config",
        "kernel_config",
        "trust_remote_code",
        "use_kernels",
    }
)
# What the configuration of a model cannot say, and why not. The values are words that go on from "its config.json".
_REFUSED = {
    "transformers_weights": "names other weights than the folder's own (`transformers_weights`)",
    "configuration_files": "stands for several configurations (`configuration_files`)",
    "use_pretrained_backbone": "takes weights from another model (`use_pretrained_backbone`)",
}
# The format allows no longer one.
_LONGEST = 100_000_000
# Model types whose code is that of a family of transformers.
_SAME_AS = {"kimi_k2": "deepseek_v3"}
_POINTER = b"version https://git-lfs"


def without_code(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as JSON data, at any depth without the names of code.

    A family that comes with code, and that transformers has by another name, goes by that.
    """
    cleaned: dict[str, Any] = _cleaned(configuration)
    if isinstance(kind := cleaned.get("model_type"), str) and kind in _SAME_AS:
        cleaned["model_type"] = _SAME_AS[kind]
    return cleaned


def check_configuration(configuration: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> None:
    """Refuses what names something that is not the model's own and cannot be left out. Raises CheckpointError."""
    for name, why in _REFUSED.items():
        if _holds(configuration, name):
            raise CheckpointError(f"its config.json {why}")
    if tokenizer.get("fast_tokenizer_files"):
        raise CheckpointError("its tokenizer_config.json stands for several tokenizers (`fast_tokenizer_files`)")


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _cleaned(part) for name, part in value.items() if name not in _NEUTRAL}
    return [_cleaned(part) for part in value] if isinstance(value, list) else value


def _holds(value: Any, name: str) -> bool:
    if isinstance(value, dict):
        return bool(value.get(name)) or any(_holds(part, name) for part in value.values())
    return isinstance(value, list) and any(_holds(part, name) for part in value)


def parsed(name: str, text: bytes) -> dict[str, Any]:
    """The JSON object in a file `name`. Raises CheckpointError."""
    try:
        data = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"`{name}` cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"`{name}` is no JSON object")
    return data


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
    except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"`{name}` is no safetensors file: its header is damaged") from error
    if 8 + length + end != size:
        wrong = "is cut off" if 8 + length + end > size else "is too long"
        raise CheckpointError(f"`{name}` {wrong}: it has {size:,} bytes, and its header tells of {8 + length + end:,}")
    return shapes

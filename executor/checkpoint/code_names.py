"""Names of code in the files of a model: what transformers would fetch or run because a configuration says so.

A configuration may name an attention, a layer of experts or a kernel, which transformers then looks for on the hub and
runs. Such names say how a model is computed and not what, so they are taken out, wherever they stand, and the model is
computed in the way that transformers has itself. What cannot be taken out without changing the model is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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


def without_code(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as JSON data, at any depth without the names of code."""
    cleaned: dict[str, Any] = _cleaned(configuration)
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

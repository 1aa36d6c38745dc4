"""What layers see, where masks and configurations say it and attention is not told."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Families whose layers hand attention a mask with the window, and not its number.
_MASKED = {"qwen2_moe", "phimoe"}
# Families whose cache keeps all tokens though layers see a window of them.
KEEP_ALL = {"gpt_neo", "minimax"}


class Sight(NamedTuple):
    """A query of a layer sees the last `window` tokens, or its own chunk of `chunk` tokens; all where both are None."""

    window: int | None = None
    chunk: int | None = None


def sights(config: PretrainedConfig, layers: int) -> list[Sight]:
    """For each layer what it does not tell attention of itself."""
    kinds = getattr(config, "layer_types", None) or [None] * layers
    window = getattr(config, "sliding_window", None) if config.model_type in _MASKED else None
    found = []
    for kind in kinds[:layers]:
        if kind == "chunked_attention":
            found.append(Sight(chunk=config.attention_chunk_size))
        else:
            found.append(Sight(window if kind in ("sliding_attention", None) else None))
    return found + [Sight()] * (layers - len(found))

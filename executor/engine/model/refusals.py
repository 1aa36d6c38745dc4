"""Reasons to refuse a model that a few tokens do not show, or do not name."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from qpdsl.executor.engine.model.module_stack import AttentionCall
from qpdsl.executor.requests.errors import UnsupportedModel

# Arguments that models hand to attention and that change nothing of it here.
_HARMLESS = frozenset({"cache_position", "dropout", "is_causal", "output_attentions", "position_ids", "use_cache"})
_INTERFACE = "transformers' attention interface"


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Makes an UnsupportedModel of whatever a model's own code raises in the block."""
    try:
        yield
    except (UnsupportedModel, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise UnsupportedModel(f"{what} ({type(error).__name__}{f': {lines[0]}' if lines else ''})") from error


def setting(config: PretrainedConfig, name: str) -> Any:
    """A value of the configuration; None where it has none, or another one for each layer."""
    try:
        return getattr(config, name, None)
    except Exception:  # newer releases of transformers have an error of their own for the second
        return None


def check_config(config: PretrainedConfig) -> None:
    """Refuses what only longer texts show."""
    if "chunked_attention" in (setting(config, "layer_types") or []):
        raise UnsupportedModel("its layers attend within chunks, which paged attention does not")
    # Rows would depend on the longest sequence of their forward.
    rope = setting(config, "rope_parameters") or setting(config, "rope_scaling") or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    if any(kind.get("rope_type", kind.get("type")) == "longrope" for kind in kinds):
        raise UnsupportedModel("its longrope position encoding changes with the longest sequence in the batch")


def check_calls(calls: list[AttentionCall], layers: int, heads: int) -> None:
    """Refuses a model whose attention does more, or less, than paged attention does."""
    times = Counter(call.layer for call in calls)
    if not times:
        raise UnsupportedModel(f"its layers compute attention by themselves, not through {_INTERFACE}")
    if repeated := [layer for layer, count in times.items() if count > 1]:
        first = min(repeated)
        raise UnsupportedModel(f"its layers attend more than once in a forward (layer {first}: {times[first]} times)")
    if sorted(times) != [*range(layers)]:
        raise UnsupportedModel(f"not all of its layers attend through {_INTERFACE} ({len(times)} of {layers} do)")
    if any(call.masked for call in calls):
        raise UnsupportedModel("it builds an attention mask of its own")
    if not all(call.causal for call in calls):
        raise UnsupportedModel("its attention is not causal")
    if unknown := sorted({name for call in calls for name in call.others} - _HARMLESS):
        raise UnsupportedModel(f"it gives attention what paged attention does not know ({', '.join(unknown)})")
    if {call.shape[0] for call in calls} != {heads}:
        raise UnsupportedModel(f"its layers differ in their numbers of heads, or have others than {heads}")


def check_windows(config: PretrainedConfig, windows: dict[int, int | None], calls: list[AttentionCall]) -> None:
    """Refuses a model whose attention has another sliding window than what it keeps (`KeptKV.windows`)."""
    kinds = setting(config, "layer_types")
    for call in calls:
        if call.layer in windows:
            window = windows[call.layer]
        else:
            # It reads what another layer keeps.
            window = setting(config, "sliding_window") if kinds and kinds[call.layer] == "sliding_attention" else None
        if window != call.window:
            raise UnsupportedModel(
                f"its layers do not tell attention of their window of {window or call.window} tokens"
            )


def check_positions(model: PreTrainedModel, inner: torch.nn.Module) -> None:
    """Refuses a model that takes no positions."""
    for module in (inner, model.get_decoder()):
        if "position_ids" in inspect.signature(module.forward).parameters:
            return
    raise UnsupportedModel(
        "it numbers the tokens of each forward itself, from 0, so no text can be read in pieces or beside others"
    )

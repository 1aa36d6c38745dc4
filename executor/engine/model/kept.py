"""What a model's layers keep of a text for the next forward, as its own cache shows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from qpdsl.executor.requests.errors import UnsupportedModel

# Where transformers' outputs hold it, by release. Encoders return none; other names are those of models with a state of
# their own.
_CACHES = ("cache", "past_key_values")
_STATES = ("cache_params", "state", "mems", "past_buckets_states")


@dataclass(frozen=True, slots=True)
class KeptKV:
    """Keys and values, and nothing else. What shape they have, the calls of attention show.

    `windows`: the sliding window of each layer that keeps any, by its number; None where it keeps all tokens.
    """

    windows: dict[int, int | None]

    @classmethod
    def of(cls, output: Any, changed: Iterable[str], mixed: bool = False) -> KeptKV:
        """From what a forward with `use_cache` returned, and the names of the tensors that it `changed` in the model.

        Where layers are `mixed` (see `mixers/`), they may keep states besides, or nothing else. Raises UnsupportedModel
        where paged memory cannot hold it.
        """
        # As attributes, newer releases have the old names too.
        fields = dict(output) if isinstance(output, dict) else vars(output)
        own = [name for name in _STATES if fields.get(name) is not None]
        cache = next((fields[name] for name in _CACHES if fields.get(name) is not None), None)
        if cache is None:
            own = own or sorted({name.rpartition(".")[2] for name in changed})
        if own and not mixed:
            raise UnsupportedModel(_state(own))
        if mixed and cache is None:
            return cls({})
        if cache is None:
            raise UnsupportedModel("it keeps no keys and values for the next token: it is an encoder, or has no cache")
        if getattr(cache, "cross_attention_cache", None) is not None:
            raise UnsupportedModel("its layers attend to an encoder too, and there is none here")
        layers = list(getattr(cache, "layers", ()))
        states = {name for part in (cache, *layers) for name in _tensors(part)} - {"keys", "values"}
        if states and not mixed:
            raise UnsupportedModel(_state(sorted(states)))
        # A layer that reads the keys and values of another keeps none itself.
        kept = {index: layer for index, layer in enumerate(layers) if getattr(layer, "keys", None) is not None}
        if not kept and not mixed:
            raise UnsupportedModel(f"it keeps a {type(cache).__name__}, not keys and values")
        return cls({index: _window(layer) for index, layer in kept.items()})


def _state(names: list[str]) -> str:
    return f"its layers keep, besides keys and values, a state of a kind that is not known here ({', '.join(names)})"


def _window(layer: Any) -> int | None:
    return getattr(layer, "sliding_window", None) if getattr(layer, "is_sliding", False) else None


def _tensors(part: Any) -> Iterator[str]:
    """The names of an object's attributes that hold tensors of more than one number, in lists and dicts too."""
    for name, value in vars(part).items():
        if name != "layers" and any(tensor.numel() > 1 for tensor in _inside(value)):
            yield name.lstrip("_")


def _inside(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _inside(part)

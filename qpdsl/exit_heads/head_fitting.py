"""Exit heads for some layers of a model: fitted, measured and described."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from qpdsl.errors import DataError, UsageError
from qpdsl.executor.checkpoint.model_digest import location_digest
from qpdsl.executor.models.load import load_modules
from qpdsl.exit_heads.exit_agreement import measure
from qpdsl.exit_heads.exit_head import ExitHead
from qpdsl.exit_heads.exit_record import ExitRecord
from qpdsl.exit_heads.text_states import FrozenHead, StateReader, States, windows_of
from qpdsl.exit_heads.tuned_lens import Lens, fit_lens
from qpdsl.model_location import locate, locate_adapter

# Shares of the windows that heads are fitted to, and that decide between heads; the others measure.
_FITTING, _CHOOSING = 0.7, 0.1
# Where exits are tried unless layers are named.
_USUAL_LAYERS = (1 / 2, 2 / 3, 5 / 6)

# What is being done, and the share of it that is.
Tell = Callable[[str, float], None]


def fit_heads(
    model: str,
    texts: Sequence[str],
    layers: Sequence[int],
    *,
    tokens: int,
    seed: int,
    seconds: float | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    tell: Tell = lambda what, share: None,
) -> tuple[ExitRecord, list[ExitHead]]:
    """Exit heads after each of `layers` layers of a model, some in its upper half where none are named.

    `tokens` of the texts are read at most. `seconds` bounds the fitting of all heads together: it is then left early,
    and which step was the last depends on the clock.
    Raises ModelError, DataError where the texts are too short, and UsageError for layers that the model does not have.
    """
    location, adapter = locate(model), locate_adapter(model)
    tell("loading the model", 0.0)
    modules, tokenizer = load_modules(model, location, device, dtype, adapter)
    reader = StateReader(model, modules)
    head, count = reader.head, len(reader.head.layers)
    chosen = _layers(model, layers, count)
    longest = getattr(modules.config.get_text_config(), "max_position_embeddings", None) or tokens
    try:
        windows = windows_of(tokenizer, texts, tokens, longest, seed)
    except ValueError as error:
        raise DataError(str(error)) from error
    first = max(1, int(_FITTING * len(windows)))
    second = max(first + 1, int((_FITTING + _CHOOSING) * len(windows)))
    parts: list[States] = []
    for begin, end in ((0, first), (first, second), (second, len(windows))):

        def told(share: float, begin: int = begin, end: int = end) -> None:
            tell("reading the text", (begin + share * (end - begin)) / len(windows))

        parts.append(reader.read(windows[begin:end], chosen, told))
    fitting, choosing, apart = parts
    lenses = _lenses(head, chosen, fitting, choosing, seed, seconds, tell)
    figures = measure(head, lenses, apart, seed, partial(tell, "measuring"))
    heads = [ExitHead(layer, lens.weight.cpu(), lens.bias.cpu(), figures[layer]) for layer, lens in lenses.items()]
    read = sum(map(len, windows))
    digest = location_digest(location, adapter)
    record = ExitRecord(model, digest, count, head.width, head.vocabulary, read, seed, tuple(figures.values()))
    return record, heads


def _layers(model: str, layers: Sequence[int], count: int) -> list[int]:
    """The layers to leave after, ascending. Raises UsageError."""
    usual = {min(count - 1, max(1, round(share * count))) for share in _USUAL_LAYERS}
    for layer in layers:
        if not 1 <= layer < count:
            raise UsageError(
                f"there is no exit after {layer} layers: `{model}` has {count}", f"give numbers from 1 to {count - 1}"
            )
    return sorted(set(layers) or usual)


def _lenses(
    head: FrozenHead,
    layers: Sequence[int],
    fitting: States,
    choosing: States,
    seed: int,
    seconds: float | None,
    tell: Tell,
) -> dict[int, Lens]:
    """A lens for each layer, with an even share of the time that is left."""
    end = float("inf") if seconds is None else time.monotonic() + seconds
    found: dict[int, Lens] = {}
    with torch.enable_grad():
        for number, layer in enumerate(layers):
            own = max(0.0, end - time.monotonic()) / (len(layers) - number)
            told = partial(tell, f"fitting layer {layer}")
            found[layer] = fit_lens(head, layer, fitting, choosing, seed, own, told)
    return found

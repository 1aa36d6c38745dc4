"""How long a plan takes when many problems run at once: forwards, how full they are, and what each of them takes.

The models of a plan take turns on one device, a forward each. A problem goes one forward on in every cycle of turns, so
the cycles follow from how many forwards a problem waits for and how many problems share them; how full a model's
forwards are follows from how many of the problems wait for that model at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qpdsl.planner.device import Device, ModelProfile, ModelShape
from qpdsl.planner.work import Work


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be run, and with what: problems in all and at once, the KV memory and the engine's limits.

    `in_flight` None means what the plan says. `shares` parts the memory between models, equal parts where there are
    none; `batches` bounds a model's sequences.
    """

    problems: int = 1
    in_flight: int | None = None
    kv_bytes: int = 2 << 30
    max_sequences: int = 128
    token_budget: int = 2048
    shares: Mapping[str, float] | None = None
    batches: Mapping[str, int] | None = None
    shapes: Mapping[str, ModelShape] | None = None

    def batch(self, model: str) -> int:
        return min((self.batches or {}).get(model, self.max_sequences), self.max_sequences)


@dataclass(frozen=True, slots=True)
class ModelPace:
    """One model over the whole run: its forwards, how many sequences decode in one, and the seconds of either kind."""

    steps: float
    batch: float
    prefill_seconds: float
    decode_seconds: float
    kv_bytes: float


@dataclass(frozen=True, slots=True)
class Pace:
    """`outside` are the seconds that the runtime takes around the forwards."""

    models: Mapping[str, ModelPace]
    outside: float

    @property
    def seconds(self) -> float:
        return self.outside + sum(each.prefill_seconds + each.decode_seconds for each in self.models.values())


def pace(works: Sequence[Work], flight: float, rows: float, longest: float, device: Device, load: Load) -> Pace:
    """`flight` problems run at once, each makes `rows` in all; `longest`: see `RunFigures`."""
    models = list(dict.fromkeys(work.model for work in works))
    turns = {model: sum(work.steps + work.waves for work in works if work.model == model) for model in models}
    whole = sum(turns.values()) or 1.0
    # The last problems in flight run with fewer and fewer beside them.
    tail = 1 + (longest - 1) * (1 - 1 / flight)
    cycles = whole * (load.problems / flight - 1 + tail)
    found = {}
    for model in models:
        own = [work for work in works if work.model == model]
        profile = device.profile(model, (load.shapes or {}).get(model))
        found[model] = _model(own, turns[model] / whole, cycles, flight, profile, device, load, len(models))
    return Pace(found, load.problems * rows * device.row_seconds)


def _model(
    works: Sequence[Work],
    share: float,
    cycles: float,
    flight: float,
    profile: ModelProfile,
    device: Device,
    load: Load,
    models: int,
) -> ModelPace:
    """`share` of a problem's forwards are this model's."""
    drawn = load.problems * sum(work.sampled for work in works)
    computed = load.problems * sum(work.computed for work in works)
    waiting = 1 - (1 - min(share, 1.0)) ** flight
    steps = cycles * waiting
    kept = sum(work.kept_tokens for work in works) * profile.shape.kv_bytes
    budget = load.kv_bytes * (load.shares or {}).get(works[0].model, 1 / models)
    # Where the problems in flight do not fit, some of their sequences wait.
    fitting = max(1.0, flight * max(work.sequences for work in works) * min(1.0, budget / max(kept * flight, 1.0)))
    steps = max(steps, drawn / min(load.batch(works[0].model), fitting), computed / load.token_budget)
    if steps <= 0:
        return ModelPace(0.0, 0.0, 0.0, 0.0, kept * flight)
    batch, chunk = drawn / steps, computed / steps
    decoding = _decode(batch, works, profile, device)
    prefilling = profile.prefill.at(chunk) - (profile.overhead if decoding else 0.0) if chunk else 0.0
    return ModelPace(steps, batch, steps * max(prefilling, 0.0), steps * decoding, min(kept * flight, budget))


def _decode(batch: float, works: Sequence[Work], profile: ModelProfile, device: Device) -> float:
    """Seconds of a forward in which `batch` sequences draw a token each."""
    drawing = [work for work in works if work.sampled]
    if batch <= 0 or not drawing:
        return 0.0
    # Forwards with nothing to draw do not decode: their time is the prompts'.
    seconds = profile.decode.at(max(batch, 1.0)) * min(batch, 1.0)
    context = sum(work.prompt / max(work.waves, 1.0) / max(work.sequences, 1.0) for work in drawing) / len(drawing)
    read = (context - profile.context) * batch * profile.shape.kv_bytes / device.bandwidth
    return max(seconds + read, seconds / 2)

"""How long a plan takes when many problems run at once: forwards, how full they are, and what each of them takes.

The models of a plan take turns on one device, a forward each. A problem goes one forward on in every cycle of turns, so
the cycles follow from how many forwards a problem waits for and how many problems share them; how full a model's
forwards are follows from how many of the problems wait for that model at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qpdsl.planner.cost.demand import Work
from qpdsl.planner.cost.device import Device, ModelProfile


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be run, and with what: problems in all and at once, the KV memory and the engine's limits.

    `in_flight` None means what the plan says. Models share the memory as they need it; `kv_type` is how keys and values
    are kept.
    """

    problems: int = 1
    in_flight: int | None = None
    kv_bytes: int = 2 << 30
    max_sequences: int = 128
    token_budget: int = 2048
    kv_type: str | None = None

    def profile(self, model: str, device: Device) -> ModelProfile:
        """The model on the device, its keys and values kept as this load keeps them."""
        return device.profile(model).kept(self.kv_type)


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
    full, tail = phases(flight, longest, load.problems)
    cycles = whole * (full + tail)
    profiles = {model: load.profile(model, device) for model in models}
    owns = {model: [work for work in works if work.model == model] for model in models}
    kept = {
        model: flight * sum(work.kept_tokens for work in own) * profiles[model].shape.kv_bytes
        for model, own in owns.items()
    }
    fits = min(load.kv_bytes / max(sum(kept.values()), 1.0), 1.0)
    found = {
        model: _model(
            own, turns[model] / whole, cycles, flight, profiles[model], device, load, fits, kept[model] * fits
        )
        for model, own in owns.items()
    }
    return Pace(found, load.problems * rows * device.row_seconds)


def phases(flight: float, longest: float, problems: int) -> tuple[float, float]:
    """How long `flight` problems run at once, and how long the last of them take, in times of a single problem.

    The last ones run with fewer and fewer beside them. Where all start at once, that is the whole run, and it takes as
    long as the longest.
    """
    return problems / flight - 1, 1 + (longest - 1) * (1 - (1 - flight / problems) / flight)


def idleness(works: Sequence[Work], flight: float, longest: float, problems: int, floor: int) -> float:
    """The share of the time, on average, by which a model that draws has fewer sequences than `floor` to work at."""
    turns = sum(work.steps + work.waves for work in works)
    drawn: dict[str, float] = {}
    for work in works:
        drawn[work.model] = drawn.get(work.model, 0.0) + work.sampled
    if not floor or not turns:
        return 0.0
    filled = flight * max(drawn.values()) / turns / floor
    full, tail = phases(flight, longest, problems)
    last = _room(filled, 1 / flight) if flight > 1 else max(1 - filled, 0.0)
    return (full * max(1 - filled, 0.0) + tail * last) / (full + tail)


def _room(filled: float, least: float) -> float:
    """The mean of 1 − `filled`·x where that is positive, over x from `least` to 1."""
    high = min(1.0, 1 / filled) if filled else 1.0
    if high <= least:
        return 0.0
    return (high - least - filled * (high**2 - least**2) / 2) / (1 - least)


def _model(
    works: Sequence[Work],
    share: float,
    cycles: float,
    flight: float,
    profile: ModelProfile,
    device: Device,
    load: Load,
    fits: float,
    held: float,
) -> ModelPace:
    """`share` of a problem's forwards are this model's; of what the problems keep `fits`, which takes `held` bytes."""
    drawn = load.problems * sum(work.decoded for work in works)
    # What does not fit is evicted, and computed again by whoever goes on from it.
    computed = load.problems * sum(work.computed + work.cached * (1 - fits) for work in works)
    waiting = 1 - (1 - min(share, 1.0)) ** flight
    steps = cycles * waiting
    # Where the problems in flight do not fit, some of their sequences wait.
    fitting = max(1.0, flight * max(work.sequences for work in works) * fits)
    steps = max(steps, drawn / min(load.max_sequences, fitting), computed / load.token_budget)
    if steps <= 0:
        return ModelPace(0.0, 0.0, 0.0, 0.0, held)
    # A problem that this model works for draws in some of the forwards, and has prompts computed in the others; the
    # more of them share a forward, the likelier it has some of either.
    turns = sum(work.steps + work.waves for work in works)
    opening = sum(work.waves for work in works) / turns if turns else 1.0
    sharing = max(flight * min(share, 1.0) / max(waiting, 1e-9), 1.0)
    decodes = min(steps * (1 - opening**sharing), drawn)
    prefills = max(min(steps * (1 - (1 - opening) ** sharing), computed), computed / load.token_budget)
    decoding = decodes * _decode(drawn / decodes, works, profile, device) if decodes else 0.0
    prefilling = 0.0
    if prefills:
        # Where others decode in the same forward its fixed part is theirs.
        theirs = (1 - opening ** (sharing - 1)) * profile.overhead
        prefilling = prefills * max(profile.prefill.at(computed / prefills) - theirs, 0.0)
    return ModelPace(steps, drawn / decodes if decodes else 0.0, prefilling, decoding, held)


def _decode(batch: float, works: Sequence[Work], profile: ModelProfile, device: Device) -> float:
    """Seconds of a forward in which `batch` sequences draw a token each."""
    seconds = profile.decode.at(max(batch, 1.0))
    drawing = [work for work in works if work.sampled]
    context = sum(work.context * work.sampled for work in drawing) / sum(work.sampled for work in drawing)
    read = profile.read_seconds
    if read is None:
        read = profile.shape.kv_bytes / device.bandwidth
    return max(seconds + (context - profile.context) * batch * read, seconds / 2)

"""How long a plan takes when many problems run at once: forwards, how full they are, and the seconds of each.

The models of a plan take turns on one device, a forward each. A problem advances by one forward in every cycle of
turns. So the number of cycles follows from how many forwards a problem waits for and how many problems share them. How
full a model's forwards are follows from how many of the problems wait for that model at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qpdsl.planner.cost.demand import Demand
from qpdsl.planner.cost.device import Device, ModelProfile


@dataclass(frozen=True, slots=True)
class RunLoad:
    """What is to be run, and with what: problems in all and at once, the KV memory and the engine's limits.

    With `in_flight` None the plan decides. Models share the memory as they need it. `kv_type` is the type that keys and
    values are kept in.
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
class ModelTiming:
    """One model over the whole run: its forwards, the sequences that decode in one, and the seconds of either kind."""

    steps: float
    batch: float
    prefill_seconds: float
    decode_seconds: float
    kv_bytes: float


@dataclass(frozen=True, slots=True)
class Timing:
    """A whole run, by model. `outside` are the seconds that the runtime takes around the forwards."""

    models: Mapping[str, ModelTiming]
    outside: float

    @property
    def seconds(self) -> float:
        return self.outside + sum(model.prefill_seconds + model.decode_seconds for model in self.models.values())


def timing_of(
    demands: Sequence[Demand], flight: float, rows: float, longest: float, device: Device, load: RunLoad
) -> Timing:
    """The timing of a run in which `flight` problems run at once and each makes `rows` in all.

    For `longest` see `RunFigures`.
    """
    models = list(dict.fromkeys(demand.model for demand in demands))
    turns = {model: sum(demand.steps + demand.waves for demand in demands if demand.model == model) for model in models}
    whole = sum(turns.values()) or 1.0
    full, tail = phases(flight, longest, load.problems)
    cycles = whole * (full + tail)
    profiles = {model: load.profile(model, device) for model in models}
    by_model = {model: [demand for demand in demands if demand.model == model] for model in models}
    kv_bytes = {
        model: flight * sum(profiles[model].shape.kept_bytes(demand.kept_tokens, demand.sequences) for demand in own)
        for model, own in by_model.items()
    }
    fits = min(load.kv_bytes / max(sum(kv_bytes.values()), 1.0), 1.0)
    timings = {
        model: _model(
            own, turns[model] / whole, cycles, flight, profiles[model], device, load, fits, kv_bytes[model] * fits
        )
        for model, own in by_model.items()
    }
    return Timing(timings, load.problems * rows * device.row_seconds)


def phases(flight: float, longest: float, problems: int) -> tuple[float, float]:
    """How long `flight` problems run at once, and how long the last of them take, in units of one problem's time.

    Fewer and fewer run beside the last ones. Where all start at once, this phase is the whole run, and it takes as long
    as the longest problem.
    """
    return problems / flight - 1, 1 + (longest - 1) * (1 - (1 - flight / problems) / flight)


def idleness(turns: float, drawn: float, flight: float, longest: float, problems: int, floor: int) -> float:
    """The share of the time, on average, by which a model that draws has fewer sequences than `floor` to work at.

    A problem takes `turns` of the device, and the model that draws most draws `drawn` tokens for it.
    """
    if not floor or not turns:
        return 0.0
    filled = flight * drawn / turns / floor
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
    demands: Sequence[Demand],
    share: float,
    cycles: float,
    flight: float,
    profile: ModelProfile,
    device: Device,
    load: RunLoad,
    fits: float,
    held: float,
) -> ModelTiming:
    """The timing of a model that runs `share` of a problem's forwards.

    The share `fits` of the keys and values that the problems keep is in memory, which takes `held` bytes.
    """
    drawn = load.problems * sum(demand.decoded for demand in demands)
    # What does not fit is evicted, and computed again by the requests that continue it.
    computed = load.problems * sum(demand.computed + demand.cached * (1 - fits) for demand in demands)
    waiting = 1 - (1 - min(share, 1.0)) ** flight
    steps = cycles * waiting
    # Where the problems in flight do not fit, some of their sequences wait.
    fitting = max(1.0, flight * max(demand.sequences for demand in demands) * fits)
    steps = max(steps, drawn / min(load.max_sequences, fitting), computed / load.token_budget)
    if steps <= 0:
        return ModelTiming(0.0, 0.0, 0.0, 0.0, held)
    # A problem that this model works for draws in some of the forwards, and has prompts computed in the others; the
    # more of them share a forward, the likelier it has some of either.
    turns = sum(demand.steps + demand.waves for demand in demands)
    opening = sum(demand.waves for demand in demands) / turns if turns else 1.0
    sharing = max(flight * min(share, 1.0) / max(waiting, 1e-9), 1.0)
    decodes = min(steps * (1 - opening**sharing), drawn)
    prefills = max(min(steps * (1 - (1 - opening) ** sharing), computed), computed / load.token_budget)
    decoding = decodes * _decode(drawn / decodes, demands, profile, device) if decodes else 0.0
    prefilling = 0.0
    if prefills:
        # Where other problems decode in the same forward, its fixed part is counted as theirs.
        theirs = (1 - opening ** (sharing - 1)) * profile.overhead
        prefilling = prefills * max(profile.prefill.at(computed / prefills) - theirs, 0.0)
    return ModelTiming(steps, drawn / decodes if decodes else 0.0, prefilling, decoding, held)


def _decode(batch: float, demands: Sequence[Demand], profile: ModelProfile, device: Device) -> float:
    """Seconds of a forward in which `batch` sequences draw, each the rows that its demand says."""
    drawing = [demand for demand in demands if demand.sampled]
    forwards = sum(demand.sampled / demand.gained for demand in drawing)
    rows = sum(demand.rows * demand.sampled / demand.gained for demand in drawing) / forwards
    context = sum(demand.context * demand.sampled for demand in drawing) / sum(demand.sampled for demand in drawing)
    return profile.decode_seconds(batch, rows, context, device.bandwidth)

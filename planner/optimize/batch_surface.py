"""Throughput over sequences side by side and the token budget of a step, for each model of a program.

Figures 6.4 and 6.5 of the thesis on a scalable runtime for LLM inference measure this surface for a generator and its
verifier, and section 7.2 takes the optimum: the memory is split, and the batch chosen, so that the slowest model is
fastest (min-max). Here the surface is estimated from the profile of the device and what the plan asks of each model for
one problem, in problems a second, as the models read and write different numbers of tokens for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qpdsl.planner.cost.demand import Demand
from qpdsl.planner.cost.device import Device, DeviceSource, ModelProfile
from qpdsl.planner.cost.timing import RunLoad
from qpdsl.planner.optimize.kv_shares import memory_levels

SEQUENCES = (1, 4, 16, 32, 64, 128)
BUDGETS = (64, 128, 256, 512, 1024, 2048)
# Rates nearer than this are the same, and the smaller batch stays.
_MORE = 1.001


@dataclass(frozen=True, slots=True)
class Optimum:
    """A split of the memory by model, and a step's most sequences and tokens, which all models have in common.

    `rate` is that of the slowest model, in problems a second, if each had the device to itself; `in_turns` that of all
    of them when they take turns, as the models of one engine do.
    """

    shares: Mapping[str, float]
    sequences: int
    token_budget: int
    rate: float
    in_turns: float
    slowest: str


@dataclass(frozen=True, slots=True)
class UsualStep:
    """A step in the long run: sequences that are `drawing`, `computed` prompt tokens, and the problems a second.

    `reading` sequences have their keys and values read, `context` tokens each.
    """

    drawing: float
    computed: float
    reading: float
    context: float
    rate: float


@dataclass(frozen=True, slots=True)
class BatchSurface:
    """`rates` of each model in problems a second at the best split: a row for each of `sequences`, a column for each
    of `budgets`. `held` is what a sequence of a model keeps in memory, in bytes; `optimum` is where the slowest model
    is fastest, and `steps` what a step of each model has in it there. `source` says what the work of a problem is
    based on, and `device` where the device's figures come from.
    """

    sequences: tuple[int, ...]
    budgets: tuple[int, ...]
    rates: Mapping[str, tuple[tuple[float, ...], ...]]
    held: Mapping[str, float]
    kv_bytes: int
    optimum: Optimum
    steps: Mapping[str, UsualStep]
    source: str
    device: DeviceSource


@dataclass(frozen=True, slots=True)
class Work:
    """What one problem asks of a model: sequences that draw summed over its forwards (`decoded`), prompt tokens
    `computed`, and `texts` that are read. A sequence keeps `kept` tokens, and a forward computes `rows` of one that
    draws, in a context of `context` tokens.
    """

    decoded: float
    computed: float
    texts: float
    kept: float
    rows: float
    context: float

    @classmethod
    def of(cls, demands: Sequence[Demand]) -> Work:
        """All that is asked of one model."""
        sampled = sum(demand.sampled for demand in demands)
        forwards = sum(demand.sampled / demand.gained for demand in demands)
        rows = sum(demand.rows * demand.sampled / demand.gained for demand in demands)
        return cls(
            sum(demand.decoded for demand in demands),
            sum(demand.computed for demand in demands),
            sum(demand.sequences * demand.waves for demand in demands),
            max(demand.kept_tokens / max(demand.sequences, 1.0) for demand in demands),
            rows / forwards if forwards else 1.0,
            sum(demand.context * demand.sampled for demand in demands) / sampled if sampled else 0.0,
        )


def batch_surface(
    demands: Sequence[Demand],
    device: Device,
    load: RunLoad,
    source: str = "rules of thumb",
    sequences: Sequence[int] = SEQUENCES,
    budgets: Sequence[int] = BUDGETS,
) -> BatchSurface | None:
    """The surface of a plan that makes these demands; None where no model is asked for anything."""
    by_model: dict[str, list[Demand]] = {}
    for demand in demands:
        if demand.computed > 0 or demand.decoded > 0:
            by_model.setdefault(demand.model, []).append(demand)
    if not by_model:
        return None
    works = {model: Work.of(own) for model, own in by_model.items()}
    profiles = {model: load.profile(model, device) for model in works}
    held = {model: profiles[model].shape.kept_bytes(work.kept) for model, work in works.items()}
    best: Optimum | None = None
    for shares in memory_levels(list(works)):
        for most in sequences:
            for budget in budgets:
                rates = {
                    model: usual_step(work, profiles[model], device, load.kv_bytes * shares[model], most, budget).rate
                    for model, work in works.items()
                }
                slowest = min(rates, key=rates.__getitem__)
                if best is None or rates[slowest] > best.rate * _MORE:
                    turns = 1 / sum(1 / rate for rate in rates.values())
                    best = Optimum(shares, most, budget, rates[slowest], turns, slowest)
    assert best is not None
    split = best.shares

    def step(model: str, most: int, budget: int) -> UsualStep:
        return usual_step(works[model], profiles[model], device, load.kv_bytes * split[model], most, budget)

    table = {
        model: tuple(tuple(step(model, most, budget).rate for budget in budgets) for most in sequences)
        for model in works
    }
    steps = {model: step(model, best.sequences, best.token_budget) for model in works}
    known = device.source(works)
    return BatchSurface(tuple(sequences), tuple(budgets), table, held, load.kv_bytes, best, steps, source, known)


def usual_step(
    work: Work, profile: ModelProfile, device: Device, kv_bytes: float, sequences: int, budget: int
) -> UsualStep:
    """The step of a model that has the device and so much KV memory to itself, and always work waiting."""
    fitting = kv_bytes / max(profile.shape.kept_bytes(work.kept), 1.0)
    # One that does not fit at all still runs, with what it has computed evicted again and again.
    side_by_side = max(1.0, min(float(sequences), fitting))
    prompt = min(work.computed / max(work.texts, 1.0), float(budget))
    if work.decoded <= 0:
        computed = min(float(budget), side_by_side * prompt)
        rate = computed / (work.computed * profile.prefill.at(computed))
        return UsualStep(0.0, computed, computed / max(prompt, 1.0), work.kept, rate)
    # In the long run a step computes prompt tokens in the ratio in which a problem needs them.
    ratio = work.computed / work.decoded
    drawing = max(1.0, min(side_by_side, budget / (work.rows + ratio)))
    seconds = profile.decode_seconds(drawing, work.rows, work.context, device.bandwidth)
    if (prompts := drawing * ratio) > 0:
        # Few prompts come one at a time, in some of the steps.
        size = max(prompts, prompt)
        seconds += prompts / size * max(profile.prefill.at(size) - profile.overhead, 0.0)
    return UsualStep(drawing, drawing * ratio, drawing, work.context, drawing / (work.decoded * seconds))

"""How the KV memory is split between the models of a plan, and how many sequences are to be at work.

Section 7.2 of the thesis on a scalable runtime for LLM inference, "throughput min-max tuning": every model has a
measured table of throughput by its part of the memory (a level) and the batch size. The slowest model sets the pace of
the pipeline, so at every level and batch the least of them counts, and the level and the batch are taken where that is
greatest. Throughput is counted in problems a second here: the models of a search write and read different numbers of
tokens for one problem, which the thesis leaves to its measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from qpdsl.planner.cost.demand import Demand
from qpdsl.planner.cost.device import Device, ModelProfile
from qpdsl.planner.cost.timing import RunLoad

LEVELS = 8
# Rates nearer than this are the same.
_MORE = 1.001
_BATCHES = (1, 4, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """`shares` of the memory by model, `batch` sequences side by side, and `rate`, the problems a second they come to.

    `slowest` is the model that sets the pace then.
    """

    shares: Mapping[str, float]
    batch: int
    rate: float
    slowest: str


def memory_splits(demands: Sequence[Demand], device: Device, load: RunLoad) -> tuple[MemorySplit, ...]:
    """Of every way to split the memory (a level) the best batch, the best level first.

    There is none where no model is asked for anything.
    """
    models = list(dict.fromkeys(demand.model for demand in demands if demand.computed or demand.sampled))
    if not models:
        return ()
    profiles = {model: load.profile(model, device) for model in models}
    tokens = {model: _tokens(demands, model) for model in models}
    splits: list[MemorySplit] = []
    for shares in memory_levels(models):
        best: MemorySplit | None = None
        for batch in _BATCHES:
            if batch > load.max_sequences:
                continue
            rates: dict[str, float] = {}
            for model in models:
                shape = profiles[model].shape
                left = load.kv_bytes * shares[model] - shape.kept_bytes(0, batch)
                kv_tokens = max(left, 0.0) / max(shape.kv_bytes, 1.0)
                writes = any(demand.sampled for demand in demands if demand.model == model)
                rates[model] = _rate(profiles[model], kv_tokens, batch, writes=writes) / tokens[model]
            slowest = min(rates, key=rates.__getitem__)
            # Of batches that come to the same the smallest stays.
            if best is None or rates[slowest] > best.rate * _MORE:
                best = MemorySplit(shares, batch, rates[slowest], slowest)
        splits += [best] if best is not None else []
    # Of levels that come to the same the most even one is first.
    greatest = max((split.rate for split in splits), default=0.0)
    return tuple(sorted(splits, key=lambda split: -split.rate if split.rate * _MORE < greatest else -greatest))


def _tokens(demands: Sequence[Demand], model: str) -> float:
    """The tokens that one problem has a model draw or, where it draws none, read."""
    of_model = [demand for demand in demands if demand.model == model]
    return sum(demand.sampled for demand in of_model) or max(sum(demand.computed for demand in of_model), 1e-9)


def memory_levels(models: Sequence[str]) -> Iterator[dict[str, float]]:
    """The shares of every way to split the memory in eighths, the most even first."""
    count = len(models)
    compositions = _compositions(max(LEVELS, count), count)
    for level in sorted(compositions, key=lambda level: max(level) - min(level)):
        yield {model: part / sum(level) for model, part in zip(models, level, strict=True)}


def _compositions(whole: int, count: int) -> Iterator[tuple[int, ...]]:
    """Every way to write a number as a sum of `count` positive ones, in all orders."""
    if count == 1:
        yield (whole,)
        return
    for first in range(1, whole - count + 2):
        for rest in _compositions(whole - first, count - 1):
            yield (first, *rest)


def _rate(profile: ModelProfile, kv_tokens: float, batch: int, *, writes: bool) -> float:
    """Tokens a second, measured where there is a table and by the curves else."""
    table = profile.generate if writes else profile.score
    if table is not None:
        return table.at(kv_tokens, batch)
    fitting = max(1.0, min(float(batch), kv_tokens / profile.context))
    if writes:
        return fitting / profile.decode.at(fitting)
    tokens = fitting * profile.context
    return tokens / profile.prefill.at(tokens)

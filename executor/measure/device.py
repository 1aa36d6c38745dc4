"""Measures a device for the planner: copies, matrix products, and what steps of a model take through the engine.

Everything runs as a program's requests would: through the scheduler, the paged cache and the sampler, on token ids that
mean nothing. See `planner/device.py` for what the figures are.

MERGED: Measures what keeping keys and values in eight bits does on a device: the error of the logits, and the steps' time.

The error is taken on texts that the model wrote itself, on tokens that mean nothing where it writes none: the most by
which any logit of any position looked at differs from that with keys and values as the model computes them.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from qpdsl.executor.engine.memory.kv_cache import KVType
from qpdsl.executor.engine.model.heads import ValueHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.measure.loads import BATCHES, CHUNKS, CONTEXT, Clock, Trial, curve_of
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.request import ReadRequest
from qpdsl.planner.cost.device import Device, KVProfile, ModelProfile, ModelShape

KV_TYPES: tuple[KVType, ...] = ("int8", "fp8")
Again = Callable[[KVType], TextModel]
_TEXTS, _WRITTEN = 8, 96
# Logits that are looked at, all texts together.
_LOGITS = 2_000_000


def measure_kv(model: TextModel, again: Again, clock: Clock) -> dict[str, KVProfile]:
    """Of every type that keys and values can be kept in; none for a model that keeps them in one of these already.

    A type in which a logit is no finite number is left out: it is no way to keep them.
    `again` loads the model with its keys and values kept so. Raises ModelError.
    """
    if model.paged.layout.kv_type is not None:
        return {}
    trial = Trial(model, clock)
    texts = trial.written(_TEXTS, _WRITTEN)
    exact = _logits(trial, texts)
    found: dict[str, KVProfile] = {}
    for kv_type in KV_TYPES:
        other = Trial(again(kv_type), clock)
        errors = [abs(a - b) for a, b in zip(exact, _logits(other, texts), strict=True)]
        if not all(map(math.isfinite, errors)):
            continue
        other.decode(4)
        prefill, decode = other.prefills(), other.decodes()
        token_bytes = float(other.model.paged.layout.token_bytes)
        found[kv_type] = KVProfile(token_bytes, max(errors), curve_of(decode or prefill), curve_of(prefill))
    return found


def _logits(trial: Trial, texts: Sequence[tuple[int, ...]]) -> list[float]:
    """The logits at positions all over the texts, one after another."""
    head = trial.model.paged.head
    width = head.width if isinstance(head, ValueHead) else trial.model.paged.vocabulary
    each = max(1, min(_WRITTEN, _LOGITS // (width * len(texts))))
    values: list[float] = []
    for text in texts:
        step = max(len(text) // each, 1)
        values += trial.logits(ReadRequest(text, tuple(range(step - 1, len(text), step)), tuple(range(width))))
    return values


def measure_device(kind: str, dtype: torch.dtype, clock: Clock = time.perf_counter) -> Device:
    """The device alone, no model on it yet. `clock` tells the seconds that count."""
    large = 1 << 26 if kind == "cpu" else 1 << 30
    source = torch.empty(large // 4, dtype=torch.float32, device=kind).uniform_()
    target = torch.empty_like(source)
    bandwidth = 2 * large / _best(lambda: target.copy_(source), kind, clock)
    width = 1024 if kind == "cpu" else 8192
    left, right = (torch.randn(width, width, device=kind).to(dtype) for _ in range(2))
    peak = 2 * width**3 / _best(lambda: left @ right, kind, clock)
    little = torch.randn(16, 64, device=kind).to(dtype)
    weight = torch.randn(64, 64, device=kind).to(dtype)
    # A layer is about ten such calls.
    overhead = 10 * _best(lambda: little @ weight, kind, clock, 20)
    name = torch.cuda.get_device_name(kind) if kind.startswith("cuda") else _processor()
    short = str(dtype).removeprefix("torch.")
    return Device(name, kind, short, torch.get_num_threads(), bandwidth, peak, overhead)


def shape_of(model: PagedModel) -> ModelShape:
    """The numbers of a loaded model; embeddings that its head shares are multiplied with, others looked up only."""
    layout = model.layout
    heads = layout.kv_heads * model.fold
    return ModelShape(model.parameters, layout.layers, heads, layout.kv_heads, layout.head_dim, model.dtype.itemsize)


def measure_model(
    model: TextModel, *, tables: bool = True, clock: Clock = time.perf_counter, again: Again | None = None
) -> ModelProfile:
    """Steps of one model by size and, with `tables`, its throughput by KV memory and batch.

    Where `again` loads the model with keys and values in eight bits, also what that does. Raises ModelError.
    """
    trial = Trial(model, clock)
    # The first steps of a model are slower than all others.
    trial.decode(4)
    trial.prefill(CHUNKS[0])
    prefill, decode = trial.prefills(), trial.decodes()
    (small, low), (large, high) = prefill[:2] if len(prefill) > 1 else (prefill[0], (prefill[0][0] * 2, prefill[0][1]))
    overhead = min(max(low - (high - low) / (large - small) * small, 0.0), decode[0][1] if decode else low)
    batches = [int(size) for size, _ in (decode or prefill)[::2] if size <= max(BATCHES)]
    return ModelProfile(
        shape_of(model.paged),
        overhead,
        CONTEXT,
        # A reward model writes nothing: the curve is never asked.
        curve_of(decode or prefill),
        curve_of(prefill),
        trial.table(batches, trial.generating) if tables and model.writes else None,
        trial.table(batches, trial.scoring) if tables else None,
        measure_kv(model, again, clock) if again is not None else {},
        trial.reading(),
    )


def _best(work: Callable[[], object], device: str, clock: Clock, times: int = 5) -> float:
    """The least seconds of some runs, after one that warms up."""

    def once() -> float:
        start = clock()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        return clock() - start

    once()
    return min(once() for _ in range(times))


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

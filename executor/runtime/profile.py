"""Measures a device for the planner: copies, matrix products, and what steps of a model take through the engine.

Everything runs as a program's requests would: through the scheduler, the paged cache and the sampler, on token ids that
mean nothing. See `planner/device.py` for what the figures are.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from qpdsl.executor.engine.model import PagedModel
from qpdsl.executor.runtime.loading import TextModel
from qpdsl.executor.runtime.profile_kv import Again, measure_kv
from qpdsl.executor.runtime.trial import BATCHES, CHUNKS, CONTEXT, Clock, Trial, curve_of
from qpdsl.planner.device import Device, ModelProfile, ModelShape


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

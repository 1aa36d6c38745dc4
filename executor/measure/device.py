"""Measures a device for the planner: copies, matrix products, and the time of a model's steps through the engine.

Everything runs as the requests of a program would: through the scheduler, the paged cache and the sampler, on random
token ids. `planner/cost/device.py` says what the figures are.

What keys and values in eight or four bits do to a model is measured as well: the time of the steps, and the largest
difference of any compared logit from that with keys and values as the model computes them, and how many draws come out
otherwise. The texts are the model's own, and random tokens where it writes none.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from qpdsl.executor.engine.model.heads import LogitHead, ValueHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.measure.loads import BATCHES, CHUNKS, CONTEXT, ModelLoads, Timer, curve_of
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.executor.requests.routing import Arm
from qpdsl.grammar.words import KV_TYPES, KVType
from qpdsl.planner.cost.device import Device, KVProfile, ModelProfile, ModelShape

# Loads the measured model with its keys and values kept in another type. Raises ModelError.
Reload = Callable[[KVType], PagedTextModel]
# The texts by which the error of quantized keys and values is taken: their number, and the tokens of each.
_TEXTS, _TEXT_TOKENS = 8, 96
# The logits that are compared, of all texts together.
_LOGITS = 2_000_000
# Shares of the panels that are listed, and how often each side is timed; the least time counts.
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
_TIMES = 3
# The ids of the widest panel; of a narrower one the share is less, which is no matter.
_WIDEST = 16


def measure_device(kind: str, dtype: torch.dtype, clock: Timer = time.perf_counter) -> Device:
    """The device alone, without a model on it. `clock` gives seconds."""
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
    """The shape of a loaded model. Embeddings count as parameters only where the head shares them."""
    layout = model.layout
    kept = layout.shapes[0]
    size = model.weight_bytes / model.parameters
    kv_bytes = float(layout.token_bytes)
    head = model.head
    rows, width = (head.width, head.in_features) if isinstance(head, LogitHead) else (0, 0)
    return ModelShape(
        model.parameters,
        layout.layers,
        kept.kv_heads * model.fold,
        kept.kv_heads,
        kept.key,
        size,
        kv_bytes,
        rows * width,
        rows,
        0.0 if model.states is None else float(model.states.block_bytes),
    )


def measure_model(
    model: PagedTextModel, *, tables: bool = True, clock: Timer = time.perf_counter, reload: Reload | None = None
) -> ModelProfile:
    """Seconds of steps of one model by size and, with `tables`, its throughput by KV memory and batch.

    With `reload`, also what quantized keys and values do to it. Raises ModelError.
    """
    loads = ModelLoads(model, clock)
    # The first steps of a model are slower than all others.
    loads.decode(4)
    loads.prefill(CHUNKS[0])
    prefill, decode = loads.prefills(), loads.decodes()
    (small, low), (large, high) = prefill[:2] if len(prefill) > 1 else (prefill[0], (prefill[0][0] * 2, prefill[0][1]))
    overhead = min(max(low - (high - low) / (large - small) * small, 0.0), decode[0][1] if decode else low)
    batches = [int(size) for size, _ in (decode or prefill)[::2] if size <= max(BATCHES)]
    return ModelProfile(
        shape_of(model.paged),
        overhead,
        CONTEXT,
        # A reward model writes nothing, and its curve of decoding is never read.
        curve_of(decode or prefill),
        curve_of(prefill),
        loads.table(batches, loads.generating) if tables and model.writes else None,
        loads.table(batches, loads.scoring) if tables else None,
        measure_kv_types(model, reload, clock) if reload is not None else {},
        loads.reading(),
        head_crossover(model.paged, clock),
    )


def measure_kv_types(model: PagedTextModel, reload: Reload, clock: Timer) -> dict[str, KVProfile]:
    """A profile of the model with its keys and values in each type of fewer bits; none if they are in one already.

    A type that its heads do not suit is left out, and one in which a logit is not finite. Raises ModelError.
    """
    if model.paged.layout.kv_type is not None:
        return {}
    loads = ModelLoads(model, clock)
    texts = loads.texts(_TEXTS, _TEXT_TOKENS)
    exact = _logits(loads, texts)
    profiles: dict[str, KVProfile] = {}
    for kv_type in (kind for kind in KV_TYPES if model.paged.unkept(kind) is None):
        quantized = ModelLoads(reload(kv_type), clock)
        changed = _logits(quantized, texts)
        errors = [abs(a - b) for a, b in zip(exact, changed, strict=True)]
        if not all(map(math.isfinite, errors)):
            continue
        quantized.decode(4)
        prefill, decode = quantized.prefills(), quantized.decodes()
        token_bytes = float(quantized.model.paged.layout.token_bytes)
        loss = changed_draws(exact, changed, model.paged.vocabulary) if model.writes else None
        curves = curve_of(decode or prefill), curve_of(prefill)
        profiles[kv_type] = KVProfile(token_bytes, max(errors), *curves, loss)
    return profiles


def changed_draws(exact: Sequence[float], other: Sequence[float], vocabulary: int) -> float:
    """The share of draws that come out otherwise under other logits, for rows of `vocabulary` logits one after another.

    Greedy ones, or those at temperature 1 with the same Gumbel noise: the larger share. One more than was seen counts,
    so that few draws prove little.
    """
    before, after = (np.asarray(values, np.float32).reshape(-1, vocabulary) for values in (exact, other))
    noise = np.random.default_rng(0).gumbel(size=before.shape).astype(np.float32)
    changed = max(
        int(np.count_nonzero((before + way).argmax(1) != (after + way).argmax(1))) for way in (np.float32(0), noise)
    )
    return (changed + 1) / (len(before) + 1)


def _logits(loads: ModelLoads, texts: Sequence[tuple[int, ...]]) -> list[float]:
    """The logits at evenly spaced positions of each text, one after another."""
    head = loads.model.paged.head
    width = head.width if isinstance(head, ValueHead) else loads.model.paged.vocabulary
    positions = max(1, min(_TEXT_TOKENS, _LOGITS // (width * len(texts))))
    values: list[float] = []
    for text in texts:
        step = max(len(text) // positions, 1)
        values += loads.logits(text, range(step - 1, len(text), step))
    return values


def _best(work: Callable[[], object], device: str, clock: Timer, times: int = 5) -> float:
    """The least seconds of `times` runs, after one to warm up."""

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


def head_crossover(model: PagedModel, clock: Callable[[], float]) -> float | None:
    """The largest of a few shares of the head at which a list of panels, spread evenly, takes no longer than all.

    Below the last of them where it takes longer at each: half of that. None where the head is not compiled. `clock`
    gives seconds.
    """
    head = model.panel_head
    if head is None or model.kernels or not isinstance(model.head, LogitHead):
        return None
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, model.head.in_features, generator=generator)
    zeros = np.zeros(1, dtype=np.int64)

    def seconds(arm: Arm, bits: np.ndarray[tuple[int, int], np.dtype[np.int32]]) -> float:
        start = clock()
        head(hidden, zeros, np.ones(1, np.float32), zeros, zeros, zeros, np.ones(1, np.bool_), bits, arm)
        return clock() - start

    for share in _SHARES:
        bits = _masked(model.vocabulary, share)
        pairs = [(seconds("rows", bits), seconds("dense", bits)) for _ in range(_TIMES + 1)][1:]
        listed, dense = (min(side) for side in zip(*pairs, strict=True))
        if listed <= dense:
            return share
    return _SHARES[-1] / 2


def _masked(vocabulary: int, share: float) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Bits int32 [1, ⌈V/32⌉] of a mask that allows one id in this share of all groups of neighbours."""
    groups = -(-vocabulary // _WIDEST)
    chosen = np.linspace(0, groups - 1, max(1, round(share * groups))).astype(np.int64)
    allowed = np.zeros(-(-vocabulary // 32) * 32, dtype=np.bool_)
    allowed[chosen * _WIDEST] = True
    return np.packbits(allowed, bitorder="little").view(np.int32)[None, :]

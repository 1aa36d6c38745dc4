"""Where the time of one step goes on the device: its kernels, by a profiler.

Which of the engine's launches are worth mending depends on this more than on any other figure.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.common.shapes import random_prompts
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.engine import decoding, engine_for, finish, model_of, way_of
from benchmarks.gpu.record import Record
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.requests.request import GenerateRequest, ReadRequest, SamplingParams

# Kernels that a case shows, the longest first.
_SHOWN = 12
# Parts of a kernel's name and what it then does; the first that fits.
_PARTS = {
    "attention": ("attention", "merge", "prefix_kernel"),
    "head": ("dense_kernel", "choose", "sample"),
    "products": ("gemm", "nvjet", "cutlass", "cublas", "xmma", "splitk", "gemv", "mm"),
}
# Steps before any is timed, and those that are timed and then profiled; in a dry run one of each.
_WARMUP, _STEPS = 8, 4


def run(record: Record, bench: Bench) -> None:
    """Replayed decode steps, a step with a prompt, and one of scoring alone: tables `steps` and `kernels`."""
    names = ("tiny",) if bench.dry else ("8B", "1B")
    cases = ((2, 20),) if bench.dry else ((1, 4096), (64, 4096))
    for name in names:
        if record.late:
            break
        with model_of(name, bench) as model:
            paged = PagedModel(model, kernels=True)
            for batch, context in cases:
                record.case(
                    "steps",
                    f"{name} {batch} × {context}",
                    lambda g=(name, paged, batch, context): decode_profile(record, *g, bench),
                )
            record.case("steps", f"{name} mixed", lambda g=(name, paged): mixed_profile(record, *g, bench))
            record.case("steps", f"{name} reads", lambda g=(name, paged): reads_profile(record, *g, bench))


def decode_profile(
    record: Record, name: str, model: PagedModel, batch: int, context: int, bench: Bench
) -> dict[str, Any]:
    """Replayed decode steps, one at a time."""
    warmup, steps = lengths(bench)
    engine = decoding(model, "stack", batch, context, warmup + 3 * steps + 8)
    for _ in range(warmup):
        engine.step()
    way = way_of("stack", model)
    return profiled(record, engine, name, way, batch, context, bench)


def mixed_profile(record: Record, name: str, model: PagedModel, bench: Bench) -> dict[str, Any]:
    """Steps in which some sequences decode and one reads a piece of its prompt."""
    batch, context, piece = (2, 20, 8) if bench.dry else (63, 1024, 193)
    total = sum(lengths(bench)) + 2 * lengths(bench)[1]
    engine = decoding(model, "stack", batch, context, 4 * total, spare=1)
    for number in range(total):
        # Each ends with its first token, so that every step has a prompt.
        for prompt in random_prompts(1, piece, model.vocabulary, seed=number + 2):
            engine.submit("m", GenerateRequest(prompt, (number,), SamplingParams(1.0), 1))
    return profiled(record, engine, name, "mixed", batch, context, bench)


def reads_profile(record: Record, name: str, model: PagedModel, bench: Bench) -> dict[str, Any]:
    """Steps that only score: 64 texts each, as a verifier has them."""
    batch, length = (2, 9) if bench.dry else (64, 40)
    engine = engine_for(model, "stack", batch, 8 * length)
    rounds = 3 * lengths(bench)[1] + 2
    for prompt in random_prompts(batch * rounds, length, model.vocabulary):
        engine.submit("m", ReadRequest(prompt, (length - 1,), (1, 2)))
    found = profiled(record, engine, name, "reads", batch, length, bench)
    finish(engine)
    return found


def profiled(
    record: Record, engine: PagedEngine, name: str, way: str, batch: int, context: int, bench: Bench
) -> dict[str, Any]:
    """One line for the step; its kernels go to the table `kernels`."""
    _, steps = lengths(bench)
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - start)
    bench.wait()
    kind = ProfilerActivity.CPU if bench.dry else ProfilerActivity.CUDA
    with profile(activities=[kind]) as trace:
        for _ in range(steps):
            engine.step()
        bench.wait()
    kernels: dict[str, tuple[int, float]] = {}
    for event in trace.events() or []:
        microseconds = event.self_cpu_time_total if bench.dry else event.self_device_time_total
        count, spent = kernels.get(event.name, (0, 0.0))
        kernels[event.name] = count + 1, spent + microseconds
    step = statistics.median(times)
    case = {"model": name, "way": way, "sequences": batch, "context": context}
    ranked = sorted(kernels.items(), key=lambda item: -item[1][1])
    rows = [
        {
            **case,
            "kernel": kernel[:60],
            "part": part_of(kernel),
            "launches": round(count / steps, 2),
            "us": round(spent / steps, 1),
        }
        for kernel, (count, spent) in ranked[:_SHOWN]
    ]
    record.data.setdefault("kernels", []).extend(rows)
    busy = sum(spent for _, spent in kernels.values()) / steps / 1000
    parts = {f"{part}_ms": round(spent_on(part, kernels) / steps / 1000, 3) for part in (*_PARTS, "small")}
    launches = round(sum(count for count, _ in kernels.values()) / steps)
    first = ranked[0][0][:60] if ranked else "none"
    line = {**case, "ms": round(step * 1e3, 3), "busy_ms": round(busy, 3), "launches": launches}
    return {**line, **parts, "first": first}


def lengths(bench: Bench) -> tuple[int, int]:
    """`_WARMUP` and `_STEPS` of this run."""
    return (1, 1) if bench.dry else (_WARMUP, _STEPS)


def part_of(kernel: str) -> str:
    """What a kernel does, by its name."""
    lower = kernel.lower()
    return next((part for part, words in _PARTS.items() if any(word in lower for word in words)), "small")


def spent_on(part: str, kernels: dict[str, tuple[int, float]]) -> float:
    return sum(spent for kernel, (_, spent) in kernels.items() if part_of(kernel) == part)

"""Where the time of a decode step goes: scheduling, batch assembly, the forward by kind of work, sampling, resolve.

    python -m benchmarks.engine.step_profile [--model zoo/counting|0.5B] [--batch 1 8 64] [--context 128]
                                             [--temperature 0] [--python]

First the step is timed as it is; then again under torch's profiler, with a scope around each part of the engine. Time
inside torch's operators goes to the kind of work that the operator does; the rest of a scope is Python and dispatch,
shown as its own line. The profiler slows the step (the last lines say by how much), so shares matter, not microseconds.
`--python` adds the functions that take the most time of their own, by cProfile.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.common.folders import RESULTS
from benchmarks.common.results import machine_line, write
from benchmarks.common.serving import NAME, checkpoint, engine_of, paged
from benchmarks.common.shapes import COUNTING, HALF, folder_of, random_prompts
from qpdsl.executor.engine.batch import grouped_batch
from qpdsl.executor.engine.batch.kernel_batch import DirectAssembler
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.model_runner import ModelRunner
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.scheduler import Scheduler
from qpdsl.executor.engine.step.readout import Readout
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams

_EXECUTOR = "qpdsl.executor."
# Scope, the class or module, its functions. A scope none of whose functions the engine has is reported as missing.
_SCOPES: tuple[tuple[str, type | ModuleType, tuple[str, ...]], ...] = (
    ("step", PagedEngine, ("step",)),
    ("scheduling", PagedEngine, ("_schedule",)),
    ("scheduling", Scheduler, ("schedule",)),
    ("batch assembly", grouped_batch, ("build",)),
    ("batch assembly", DirectAssembler, ("step",)),
    ("forward", PagedModel, ("forward",)),
    ("attention", grouped_batch, ("paged_attention",)),
    ("store KV", grouped_batch, ("write_kv",)),
    ("head", PagedModel, ("logits",)),
    ("sampling", Readout, ("sample",)),
    ("resolve", ModelRunner, ("resolve_reads", "resolve_draws")),
    ("resolve", PagedEngine, ("_report",)),
)
_PREFIX = "qpdsl::"
_PRODUCTS = ("linear", "addmm", "::mm", "matmul", "bmm", "baddbmm", "mkldnn", "onednn")
_GATHERS = ("index_select", "::index", "gather", "take", "embedding")


@dataclass(frozen=True)
class Part:
    """Microseconds of one step under the profiler, and their share of it."""

    part: str
    microseconds: float
    share: float


@dataclass(frozen=True)
class Profile:
    """One batch size: a step as it is, the same step under the profiler, and where its time went."""

    model: str
    batch: int
    context: int
    step_ms: float
    step_cpu_ms: float
    profiled_ms: float
    parts: list[Part]


def _scoped(function: Callable[..., Any], scope: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        with record_function(_PREFIX + scope):
            return function(*arguments, **options)

    return call


@contextmanager
def scopes() -> Iterator[list[str]]:
    """Puts a profiler scope around each part of the engine for the block; yields the scopes that were not found."""
    replaced: list[tuple[Any, str, Any]] = []
    wrapped: set[str] = set()
    for scope, holder, names in _SCOPES:
        for name in names:
            function = getattr(holder, name, None)
            if function is None:
                continue
            wrapped.add(scope)
            for place in _importers(name, function) if isinstance(holder, ModuleType) else [holder]:
                replaced.append((place, name, function))
                setattr(place, name, _scoped(function, scope))
    try:
        yield sorted({scope for scope, *_ in _SCOPES} - wrapped)
    finally:
        for place, name, function in replaced:
            setattr(place, name, function)


def _importers(name: str, function: object) -> list[ModuleType]:
    """The modules of the executor that have a function under its name, its own among them."""
    modules = [module for path, module in sys.modules.items() if path.startswith(_EXECUTOR)]
    return [module for module in modules if getattr(module, name, None) is function]


def _kind(scope: str, operator: str) -> str:
    """The line of the table that an operator's time goes to."""
    if scope == "attention":
        if any(word in operator for word in _GATHERS):
            return "forward: attention gather"
        if any(word in operator for word in ("attention", "softmax", *_PRODUCTS)):
            return "forward: attention"
        return "forward: attention masks and copies"
    if scope == "store KV":
        return "forward: store KV"
    if scope == "forward":
        if any(word in operator for word in _PRODUCTS):
            return "forward: linear"
        return "forward: norm, rope, activation, residual"
    return scope


def _remainder(scope: str) -> str:
    """The line for the time of a scope that no operator and no inner scope accounts for."""
    if scope == "forward":
        return "forward: Python of the layers"
    if scope == "attention":
        return "forward: Python of attention"
    if scope == "store KV":
        return "forward: store KV"
    if scope == "step":
        return "the rest of step()"
    return scope


def _account(event: FunctionEvent, scope: str, spent: dict[str, float]) -> None:
    """Adds a scope's time: operators by kind, inner scopes by themselves, what is left to the scope itself."""
    left = event.cpu_time_total
    for child in event.cpu_children:
        left -= child.cpu_time_total
        if child.name.startswith(_PREFIX):
            _account(child, child.name.removeprefix(_PREFIX), spent)
        else:
            spent[_kind(scope, child.name)] += child.cpu_time_total
    spent[_remainder(scope)] += max(0.0, left)


def _accounted(step: FunctionEvent) -> dict[str, float]:
    spent: dict[str, float] = defaultdict(float)
    _account(step, "step", spent)
    return spent


def _started(model: PagedModel, batch: int, context: int, steps: int, temperature: float) -> PagedEngine:
    """An engine that has prefilled `batch` prompts of `context` tokens and decodes all of them in each step."""
    reports: list[StepReport] = []
    pages = batch * (-(-(context + steps + 64) // model.layout.page_size) + 1)
    config = EngineConfig(max_sequences=max(128, batch))
    engine = engine_of({NAME: model}, 2 * pages * model.layout.page_bytes, config, reports.append)
    for index, prompt in enumerate(random_prompts(batch, context, model.vocabulary)):
        engine.submit(NAME, GenerateRequest(prompt, (index,), SamplingParams(temperature), steps + 32))
    while not reports or reports[-1].prefill_tokens or reports[-1].waiting:
        engine.step()
    for _ in range(4):
        engine.step()
    return engine


def measure(name: str, model: PagedModel, batch: int, context: int, steps: int, temperature: float) -> Profile:
    """One table: `steps` decode steps as they are, then as many under the profiler."""
    engine = _started(model, batch, context, steps, temperature)
    wall, cpu = [], []
    for _ in range(steps):
        start, start_cpu = time.perf_counter(), time.process_time()
        engine.step()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    engine = _started(model, batch, context, steps, temperature)
    with scopes() as missing, profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            engine.step()
    for part in missing:
        print(f"not found, so its time is part of what is around it: {part}")
    spent = [_accounted(event) for event in profiler.events() if event.name == _PREFIX + "step"]
    # Medians a part: a step that something else on the machine interrupted counts for nothing.
    names = {part for step in spent for part in step}
    medians = {name: statistics.median(step.get(name, 0.0) for step in spent) for name in names}
    total = sum(medians.values())
    parts = [Part(name, round(value, 1), round(value / total, 4)) for name, value in medians.items()]
    parts.sort(key=lambda part: -part.microseconds)
    return Profile(
        name,
        batch,
        context,
        round(statistics.median(wall) * 1e3, 3),
        round(statistics.median(cpu) * 1e3, 3),
        round(total / 1e3, 3),
        parts,
    )


def hot(model: PagedModel, batch: int, context: int, steps: int, temperature: float, rows: int = 30) -> None:
    """Prints the Python functions with the most time of their own."""
    engine = _started(model, batch, context, steps, temperature)
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(steps):
        engine.step()
    profiler.disable()
    print(f"\n## Python by own time, batch {batch}, {steps} steps\n")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(rows)


def table(profiles: list[Profile]) -> str:
    """One table: parts down, batch sizes across, in microseconds of a profiled step and percent of it."""
    names = list(dict.fromkeys(part.part for profile_ in reversed(profiles) for part in profile_.parts))
    by_part = [{part.part: part for part in profile_.parts} for profile_ in profiles]
    names.sort(key=lambda name: -max(parts[name].share for parts in by_part if name in parts))
    lines = ["| part of a step | " + " | ".join(f"B={p.batch} µs | %" for p in profiles) + " |"]
    lines.append("|---" + "|---:|---:" * len(profiles) + "|")
    for name in names:
        cells = [parts.get(name, Part(name, 0.0, 0.0)) for parts in by_part]
        lines.append(f"| {name} | " + " | ".join(f"{c.microseconds:,.0f} | {c.share:.1%}" for c in cells) + " |")
    lines.append("| step under the profiler, ms | " + " | ".join(f"{p.profiled_ms:.2f} | " for p in profiles) + " |")
    lines.append(
        "| step as it is, ms of processor time | " + " | ".join(f"{p.step_cpu_ms:.2f} | " for p in profiles) + " |"
    )
    lines.append("| **step as it is, ms** | " + " | ".join(f"**{p.step_ms:.2f}** | " for p in profiles) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=COUNTING, choices=(COUNTING, HALF))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--python", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:
        model = paged(checkpoint(folder_of(arguments.model, Path(scratch))))
    shape = (arguments.context, arguments.steps, arguments.temperature)
    profiles = [measure(arguments.model, model, batch, *shape) for batch in arguments.batch]
    title = f"A decode step of `{arguments.model}`, context {arguments.context}, temperature {arguments.temperature:g}"
    text = f"# {title}\n\n{table(profiles)}\n\n{machine_line()}\n"
    name = f"step_profile_{arguments.model.rpartition('/')[2]}"
    write(arguments.output, name, text, {"profiles": [asdict(profile_) for profile_ in profiles]})
    if arguments.python:
        for batch in arguments.batch:
            hot(model, batch, *shape)


if __name__ == "__main__":
    main()

"""Where a step's time goes, beside what the processor could do; and a model of it at N threads, checked with two.

    python -m benchmarks.engine.threads [--folder FOLDER] [--model SmolLM2-135M] [--rows 1 8 64]
        [--prompts 1x64 8x64 64x64 1x1024 1x4096] [--quick]

The compiled layers are compiled once more with a reading of the thread's own clock after each part, so a part's time is
its own, other processes take nothing from it, and waiting at barriers is told apart. What runs outside of compiled code
is the host's. The fastest run of each part counts. Its operations are beside those of multiply-adds in registers, its
bytes beside what a loop reads, and products beside torch's (MKL) and oneDNN's of the same shapes, by one thread in the
same run.

With N threads a part takes the share of the thread with most pieces, and at least as long as its bytes take to come
from memory; a barrier takes what it takes two threads, and as much more for each further thread (arrivals follow each
other); waking threads takes what is measured here with so many of them, on however many cores. The prediction for two
threads is beside what two threads take. For more, memory is either this machine's with two threads, or gives each
thread what one has here.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from llvmlite import ir
from torch._C._nn import mkldnn_linear
from torch.nn.functional import linear

from benchmarks.common.folders import RESULTS
from benchmarks.common.real_models import DEFAULT
from benchmarks.common.results import machine_line, write
from benchmarks.common.roofline import Roofline
from benchmarks.common.serving import NAME, engine_of, greedy
from benchmarks.common.subjects import FLOAT32, Subject, subjects
from qpdsl.executor.engine.model.native_stack import NativeStack
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.kernels.llvm.compile import TEAM, Library, digest_of_sources
from qpdsl.executor.kernels.llvm.forward import (
    BARRIER_NUMBERS,
    OWN_NORM_ROWS,
    ForwardCode,
    ForwardShape,
    forward_emitters,
    gate_columns,
)
from qpdsl.executor.kernels.llvm.head_code import BLOCK
from qpdsl.executor.kernels.llvm.kernel_code import I32, I64, POINTER, KernelCode, Value
from qpdsl.executor.kernels.llvm.matmul_code import panels_at_once
from qpdsl.executor.models.quick_load import load

PRODUCTS = ("join", "out", "widen", "down")
PARTS = ("norm", *PRODUCTS, "gate", "store", "attend", "add norm", "wait", "back", "attended gate")
THREADS = (2, 4, 8, 16, 32)
# 64-bit numbers that the clock of a thread has, behind those of the barrier.
_OWN = 64
_FILLED = 1 << 29


class ClockedForward(ForwardCode):
    """The code of a forward that adds each part's nanoseconds of processor time to its place behind the barrier."""

    _product = ""

    def emit(self) -> None:
        self._now = self._code.array(I64, 2)
        self._last = self._code.variable(I64, self._nanoseconds())
        super().emit()

    def _nanoseconds(self) -> Value:
        code = self._code
        clock = code.intrinsic("clock_gettime", ir.FunctionType(I32, [I32, POINTER]))
        code.builder.call(clock, [ir.Constant(I32, time.CLOCK_THREAD_CPUTIME_ID), self._now])
        seconds, rest = (code.integer(self._now, code.number(index), I64) for index in range(2))
        return code.add(code.times(seconds, 10**9), rest)

    def _mark(self, part: str) -> None:
        code, now = self._code, self._nanoseconds()
        thread = code.add(code.times(self._thread, _OWN), BARRIER_NUMBERS // 2 + PARTS.index(part))
        place = code.at(self._pointer("barrier"), thread, I64)
        code.builder.store(code.add(code.builder.load(place, typ=I64), code.builder.sub(now, self._last.get())), place)
        self._last.set(now)

    def _prepare(self, product: str, source: Value, row: Value) -> None:
        self._product = product
        super()._prepare(product, source, row)

    def _part(self, product: str, *arguments: Any) -> None:
        self._product = product
        super()._part(product, *arguments)

    def _call(self, function: str, *arguments: Value) -> None:
        super()._call(function, *arguments)
        self._mark(function)

    def _call_address(self, address: Value, kinds: tuple[Any, ...], *arguments: Value) -> None:
        super()._call_address(address, kinds, *arguments)
        self._mark(self._product)


def emit_clocked(module: ir.Module, name: str, shape: ForwardShape, width: int, sources: str) -> None:
    """Arguments as `emit_forward` has them. `sources`: what else its code depends on, for who keeps it."""
    del sources
    ClockedForward(KernelCode(module, name, ("frame", "@thread", "@threads"), width), shape).emit()


@dataclass(frozen=True)
class Work:
    """One kind of work: `rows` prompts of `context` tokens, of which the first token is drawn, or a step after that."""

    rows: int
    context: int
    prompts: bool

    def __str__(self) -> str:
        return f"{self.rows}×{self.context} tokens read" if self.prompts else f"a step of {self.rows} row(s)"


@dataclass
class Spent:
    """Seconds of some steps: `parts` of the layers by the thread with most, and what is around them."""

    steps: int
    whole: float
    parts: dict[str, float]
    layers: float
    head: float
    host: float


class Clock:
    """Runs a model's layers clocked, and its threads watched, with so many threads."""

    def __init__(self, model: PagedModel, threads: int) -> None:
        stack = model._stack
        assert isinstance(stack, NativeStack)
        torch.set_num_threads(threads)
        self._threads, self._run = threads, TEAM.run
        # One thread's work is the caller's own.
        self._read = time.thread_time if threads == 1 else time.perf_counter
        self._numbers = torch.zeros(BARRIER_NUMBERS // 2 + threads * _OWN, dtype=torch.int64)
        stack._barrier, stack._times = self._numbers.view(torch.int32), ({}, {})
        shape = stack.shape
        emitters = forward_emitters(shape)
        emitters["forward"] = partial(
            emit_clocked, **emitters["forward"].keywords, sources=digest_of_sources(Path(__file__).parent)
        )
        self._library = Library(emitters)
        stack._forwards["plain", torch.float32] = self._library["forward"]
        self._walls: dict[str, float] = defaultdict(float)

    @contextmanager
    def watched(self) -> Iterator[None]:
        def run(threads: int, job: Callable[[int], None]) -> None:
            begin = self._read()
            self._run(threads, job)
            what = "layers" if "NativeStack" in job.__qualname__ else "head"
            self._walls[what] += self._read() - begin

        TEAM.run = run  # type: ignore[method-assign]
        try:
            yield
        finally:
            TEAM.run = self._run  # type: ignore[method-assign]

    def step(self, engine: PagedEngine) -> Spent:
        """One step of the engine."""
        clock = self._numbers[BARRIER_NUMBERS // 2 :].view(self._threads, _OWN)
        clock.zero_()
        self._walls.clear()
        begin = self._read()
        engine.step()
        whole = self._read() - begin
        # A part ends with its last thread; who waits, waits for it.
        most = (clock.amax(dim=0).double() / 1e9).tolist()
        parts = {part: most[number] for number, part in enumerate(PARTS) if part != "wait"}
        layers, head = self._walls["layers"], self._walls["head"]
        return Spent(1, whole, parts, layers, head, whole - layers - head)


def measure(model: PagedModel, subject: Subject, work: Work, threads: int, repeats: int) -> Spent:
    """The fastest step after the prompts, or the fastest time to read them, of `repeats`."""
    clock, found = Clock(model, threads), list[Spent]()
    prompts = subject.prompts(work.rows, work.context)
    # Some rows draw tokens while others are still read.
    reading = -(-work.rows * work.context // EngineConfig().token_budget)
    steps = 1 if work.prompts else repeats + 2 + reading
    for _ in range(repeats if work.prompts else 1):
        reports: list[StepReport] = []
        room = work.rows * (work.context + steps + 2 * model.layout.page_size)
        config = EngineConfig(max_sequences=max(128, work.rows))
        engine = engine_of({NAME: model}, 2 * room * model.layout.token_bytes, config, reports.append)
        for prompt in prompts:
            engine.submit(NAME, greedy(prompt, steps + 1))
        with clock.watched():
            read, unread = list[Spent](), work.rows * work.context
            while unread > 0:
                read.append(clock.step(engine))
                unread -= sum(report.prefill_tokens + report.cached_tokens for report in reports)
                reports.clear()
            if work.prompts:
                found.append(_together(read, sum, len(read)))
                continue
            # The first step may still compile or grow something.
            engine.step()
            found += [clock.step(engine) for _ in range(repeats)]
    return _together(found, min, found[0].steps)


def _together(spent: Sequence[Spent], of: Callable[[Iterable[float]], float], steps: int) -> Spent:
    """The sum, or the least, of every figure."""
    parts = {part: of(step.parts[part] for step in spent) for part in spent[0].parts}
    whole, *rest = (of(getattr(step, name) for step in spent) for name in ("whole", "layers", "head", "host"))
    return Spent(steps, whole, parts, *rest)


@dataclass(frozen=True)
class Machine:
    """What a step costs besides its work.

    bandwidth: bytes a second that one thread and two read
    speed:     operations a second of one thread and of two, fused multiply-adds in registers
    barrier:   seconds of a barrier of two threads
    wake:      seconds to start a job in so many threads, and to wait for its end
    """

    bandwidth: tuple[float, float]
    speed: tuple[float, float]
    barrier: float
    wake: Mapping[int, float]


def machine(model: PagedModel, quick: bool) -> Machine:
    """Measures this one."""
    rooflines = [Roofline(threads) for threads in (1, 2)]
    # By processor time, of which others take nothing.
    rates = [
        roofline.read(_FILLED // (8 if quick else 1))[1] * threads for threads, roofline in enumerate(rooflines, 1)
    ]
    speeds = [2 * roofline.multiply_adds()[1] * threads for threads, roofline in enumerate(rooflines, 1)]
    stack = model._stack
    assert isinstance(stack, NativeStack)
    library = Library({"wait": forward_emitters(stack.shape)["wait"], "waits": partial(_emit_waits)})
    numbers = torch.zeros(BARRIER_NUMBERS, dtype=torch.int32)
    waits, times = library["waits"], 2000
    barrier = min(_timed(lambda: TEAM.run(2, lambda _: waits(numbers.data_ptr(), 2, times))) for _ in range(20)) / times
    wake = {}
    for threads in THREADS:
        wake[threads] = sorted(_timed(lambda count=threads: TEAM.run(count, _nothing)) for _ in range(100))[25]
    return Machine((rates[0], rates[1]), (speeds[0], speeds[1]), barrier, wake)


def _emit_waits(module: ir.Module, name: str) -> None:
    code = KernelCode(module, name, ("barrier", "@threads", "@times"), 4)
    with code.loop(0, code.arguments["times"]):
        given = (code.arguments["barrier"], code.arguments["threads"])
        code.builder.call(module.get_global("wait"), given)
    code.end()


def _nothing(_: int) -> None:
    pass


def _timed(job: Callable[[], object], now: Callable[[], float] = time.perf_counter) -> float:
    begin = now()
    job()
    return now() - begin


@dataclass(frozen=True)
class Part:
    """A part of a step: its seconds with one thread and its bytes; and its pieces, shared by so many threads."""

    name: str
    seconds: float
    bytes: int
    share: Callable[[int], float]
    pieces: int

    def at(self, threads: int, bandwidth: float) -> float:
        return max(self.seconds * self.share(threads), self.bytes / bandwidth if self.seconds else 0.0)


def parts_of(model: PagedModel, work: Work, spent: Spent) -> list[Part]:
    """The parts of what one thread `spent`, with the pieces that threads share as `ForwardCode` shares them."""
    stack, head = model._stack, model.panel_head
    assert isinstance(stack, NativeStack) and head is not None
    laid, heads = stack._layers, stack.shape.heads
    tokens = work.rows * work.context // spent.steps if work.prompts else work.rows
    tile = panels_at_once(laid[0].products["join"].weights.width)
    found = [_shared("norm", spent, tokens, alone=tokens <= OWN_NORM_ROWS)]
    for product in PRODUCTS:
        weights = laid[0].products[product].weights
        size = spent.steps * sum(layer.products[product].weights.nbytes for layer in laid)
        seconds = spent.parts[product]
        if product == "widen":
            turns = weights.outputs // (2 * gate_columns(weights.width))
            found.append(Part(product, seconds, size, partial(_share, turns), turns))
            found.append(Part("gate", spent.parts["gate"], 0, partial(_share, turns), turns))
        else:
            found.append(Part(product, seconds, size, partial(_panel_share, weights.count, tile), weights.count))
    context = work.context / 2 if work.prompts else work.context
    kv = int(model.layout.token_bytes * context * work.rows)
    found.append(_shared("store", spent, tokens))
    found.append(
        Part("attend", spent.parts["attend"], kv, partial(_share, tokens * heads.kv_heads), tokens * heads.kv_heads)
    )
    if spent.parts["add norm"]:
        found.append(_shared("add norm", spent, tokens))
    blocks = math.ceil(model.vocabulary / BLOCK)
    read = head.weight_bytes // (4 if head.screens and not work.prompts and work.rows <= 12 else 1)
    found.append(Part("head", spent.head, read, partial(_share, blocks), blocks))
    return found


def layers_of(part: str, work: Work, depth: int) -> int:
    """How many layers have a part for all rows: of prompts, the last one has what leads to keys and values alone."""
    return depth - (work.prompts and part != "join")


def _shared(name: str, spent: Spent, rows: int, *, alone: bool = False) -> Part:
    """What rows share out; `alone`: each thread computes all of it."""
    return Part(name, spent.parts[name], 0, (lambda _: 1.0) if alone else partial(_share, rows), 1 if alone else rows)


def _share(pieces: int, threads: int) -> float:
    return math.ceil(pieces / threads) / pieces


def _panel_share(panels: int, tile: int, threads: int) -> float:
    if panels < 16 * tile * threads:
        return math.ceil(panels / threads) / panels
    return math.ceil(panels / tile / threads) * tile / panels


def barriers(model: PagedModel, work: Work, parts: Sequence[Part]) -> int:
    """How many barriers a forward has."""
    few = not work.prompts and work.rows <= OWN_NORM_ROWS
    norms_after = 2 if any(part.name == "add norm" for part in parts) else 0
    return model.depth * (6 + (0 if few else 2) + norms_after) + 1


def predicted(parts: Sequence[Part], spent: Spent, waits: int, here: Machine, threads: int, *, own: bool) -> float:
    """Seconds with so many threads. `own`: each thread has a memory of its own, as one has it here."""
    bandwidth = here.bandwidth[0] * threads if own else here.bandwidth[1]
    work = sum(part.at(threads, bandwidth) for part in parts)
    wakes = 3 * here.wake[threads]
    return work + spent.host + spent.steps * (waits * here.barrier * threads / 2 + wakes)


def page(subject: Subject, here: Machine, cases: Sequence[dict[str, Any]]) -> str:
    one, two = (f"{rate / 1e9:.1f}" for rate in here.bandwidth)
    fast, faster = (f"{speed / 1e9:.0f}" for speed in here.speed)
    wakes = ", ".join(f"{threads}: {1e6 * seconds:.0f}" for threads, seconds in here.wake.items())
    lines = [
        f"# A step of {subject.name} in float32, by threads",
        "",
        f"Memory gives one thread {one} GB/s, two {two}. Multiply-adds in registers are {fast} thousand million "
        f"operations a second by one thread, {faster} by two. A barrier of two threads takes "
        f"{1e6 * here.barrier:.2f} µs. Waking threads takes, in µs by their number, {wakes}.",
        "",
        "| work | 1 thread, ms | 2, measured | 2, predicted | off | gain | barriers | host, ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case in cases:
        measured, said = case["two"]["whole"], case["predicted"]["2"]["this memory"]
        lines.append(
            f"| {case['work']} | {1e3 * case['one']['whole']:.1f} | {1e3 * measured:.1f} | {1e3 * said:.1f} "
            f"| {said / measured - 1:+.0%} | {case['one']['whole'] / measured:.2f} | {case['barriers']} "
            f"| {1e3 * case['one']['host']:.2f} |"
        )
    lines += ["", "Times one thread, with this machine's memory, and with a memory that grows with the threads:", ""]
    lines += [f"| work | {' | '.join(map(str, THREADS))} |", f"|---|{'---:|' * len(THREADS)}"]
    for case in cases:
        cells = [
            " / ".join(f"{case['one']['whole'] / case['predicted'][str(n)][memory]:.1f}" for memory in MEMORIES)
            for n in THREADS
        ]
        lines.append(f"| {case['work']} | {' | '.join(cells)} |")
    for case in cases:
        lines += ["", f"## {case['work']}", ""]
        lines += [
            "| part | 1 thread, ms | of a step | of memory | of arithmetic | torch, ms | oneDNN, ms | 2 threads, ms "
            "| of memory | of arithmetic | pieces | at 32 |",
            f"|---|{'---:|' * 11}",
        ]
        for part in case["parts"]:
            one, two = part["seconds"], part["two"]
            shares = [
                f"{part[what] / seconds / most[threads]:.0%}" if part[what] and seconds else ""
                for threads, seconds in enumerate((one, two))
                for what, most in (("bytes", here.bandwidth), ("operations", here.speed))
            ]
            peers = [
                f"{1e3 * case['peers'][peer][part['name']]:.2f}" if part["name"] in PRODUCTS else "" for peer in PEERS
            ]
            cells = [f"{1e3 * one:.2f}", f"{one / case['one']['whole']:.0%}", *shares[:2], *peers, f"{1e3 * two:.2f}"]
            cells += [*shares[2:], str(part["pieces"]), f"{1 / part['share']:.1f}"]
            lines.append(f"| {part['name']} | {' | '.join(cells)} |")
    text = "`at 32`: how many times faster the part is with 32 threads, by its pieces alone."
    return "\n".join(
        [*lines, "", text, "", "Written by `python -m benchmarks.engine.threads`.", "", machine_line(), ""]
    )


MEMORIES = ("this memory", "a memory for each")
PEERS = ("torch", "oneDNN")
# Layers whose weights no cache holds together.
_COLD_LAYERS = 5


class Peers:
    """The products of some layers by torch's two libraries, with weights of their own in the order each wants them."""

    def __init__(self, model: PagedModel) -> None:
        stack = model._stack
        assert isinstance(stack, NativeStack)
        laid = {name: product.weights for name, product in stack._layers[0].products.items()}
        self._depth = len(stack._layers)
        self._weights = {
            name: [torch.randn(weights.outputs, weights.inputs) for _ in range(_COLD_LAYERS)]
            for name, weights in laid.items()
        }
        self._packed = {name: [weight.to_mkldnn() for weight in own] for name, own in self._weights.items()}

    def seconds(self, work: Work, rows: int, steps: int, repeats: int) -> dict[str, dict[str, float]]:
        """What all layers of so many steps of `rows` rows take one thread, by library and product: the fastest run."""
        torch.set_num_threads(1)
        found = {peer: dict.fromkeys(self._weights, math.inf) for peer in PEERS}
        for _ in range(repeats):
            for name, weights in self._weights.items():
                given = torch.randn(rows, weights[0].shape[1])
                # No weights of a product are used again before the other products' have passed the caches.
                for peer, run in (
                    ("torch", partial(_all, linear, given, weights)),
                    ("oneDNN", partial(_all, mkldnn_linear, given.to_mkldnn(), self._packed[name])),
                ):
                    seconds = _timed(run, time.thread_time) * steps * layers_of(name, work, self._depth) / _COLD_LAYERS
                    found[peer][name] = min(found[peer][name], seconds)
        return found


def _all(product: Callable[..., torch.Tensor], rows: torch.Tensor, weights: Sequence[torch.Tensor]) -> None:
    for weight in weights:
        product(rows, weight)


def case_of(model: PagedModel, subject: Subject, work: Work, here: Machine, peers: Peers, repeats: int) -> Any:
    one, two = (measure(model, subject, work, threads, repeats) for threads in (1, 2))
    parts = parts_of(model, work, one)
    waits = barriers(model, work, parts)
    predictions = {
        str(threads): {
            memory: predicted(parts, one, waits, here, threads, own=memory != MEMORIES[0]) for memory in MEMORIES
        }
        for threads in THREADS
    }
    seconds_of_two = {**two.parts, "head": two.head}
    tokens = work.rows * (work.context if work.prompts else 1)
    laid = model._stack._layers  # type: ignore[union-attr]
    depth = len(laid)
    operations = {}
    for name in PRODUCTS:
        weights = laid[0].products[name].weights
        operations[name] = 2 * tokens * weights.outputs * weights.inputs * layers_of(name, work, depth)
    heads = model._stack.shape.heads  # type: ignore[union-attr]
    seen = work.context / 2 if work.prompts else work.context
    operations["attend"] = int(4 * tokens * seen * heads.queries * layers_of("attend", work, depth))
    operations["head"] = 2 * work.rows * model.vocabulary * model.head_inputs
    rows = [
        {
            "name": part.name,
            "seconds": part.seconds,
            "bytes": part.bytes,
            "operations": operations.get(part.name, 0),
            "two": seconds_of_two.get(part.name, 0.0),
            "pieces": part.pieces,
            "share": part.share(32),
        }
        for part in parts
    ]
    return {
        "work": str(work),
        "one": asdict(one),
        "two": asdict(two),
        "barriers": waits,
        "peers": peers.seconds(work, tokens // one.steps, one.steps, repeats),
        "predicted": predictions,
        "parts": rows,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, default=DEFAULT, help=f"where the models are (default: {DEFAULT})")
    options.add_argument("--model", default="SmolLM2-135M")
    options.add_argument("--rows", nargs="*", type=int, default=[1, 8, 64])
    options.add_argument("--context", type=int, default=128, help="tokens before a step")
    options.add_argument(
        "--prompts", nargs="*", default=["1x64", "8x64", "64x64", "1x1024", "1x4096"], metavar="ROWSxTOKENS"
    )
    options.add_argument("--quick", action="store_true", help="one repeat: does it work?")
    options.add_argument("--output", type=Path, default=RESULTS)
    arguments = options.parse_args()
    subject = subjects(arguments.folder)[arguments.model]
    model = load(NAME, subject.weights(FLOAT32, gguf=False), "cpu", None).paged
    here = machine(model, arguments.quick)
    works = [Work(rows, arguments.context, prompts=False) for rows in arguments.rows]
    works += [Work(*map(int, given.split("x")), prompts=True) for given in arguments.prompts]
    peers, cases = Peers(model), []
    for work in works:
        repeats = 1 if arguments.quick else 3 if work.prompts else 30
        cases.append(case_of(model, subject, work, here, peers, repeats))
        print(work, flush=True)
    record = {"model": subject.name, "costs": asdict(here), "cases": cases}
    write(arguments.output, "threads", page(subject, here, cases), record)


if __name__ == "__main__":
    main()

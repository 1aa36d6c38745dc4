"""Each Triton kernel against its torch twin, over shapes, types, windows, caps, sinks and ragged lengths."""

from __future__ import annotations

import io
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.record import Record, alive, reason
from qpdsl.executor.kernels import layers, paged_attention
from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind
from qpdsl.executor.kernels.data.layer_constants import Addition, HeadConstants, NormWeights
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, PrefixCascade, Scoring
from qpdsl.executor.kernels.data.shared_prefixes import plan
from qpdsl.executor.kernels.plain import layer_twins, reference
from tests.support.executor.paged_case import DEVICE, make_batch, make_query, make_rows, page_tables

F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
# Relative errors: those of the sums in float32, and in 16 bits of the rounded weights and the rounded result.
BOUNDS = {F32: 2e-5, BF16: 1e-2, F16: 1.5e-3}
# Seconds after which compute-sanitizer is left alone.
_SANITIZED = 45


@dataclass(frozen=True)
class Shape:
    """One geometry and one way to score."""

    kind: RowKind
    dtype: torch.dtype
    page_size: int
    kv_heads: int
    fold: int
    dim: int
    window: int | None = None
    cap: float | None = None
    sinks: bool = False


SHAPES = [
    Shape("plain", BF16, 16, 8, 4, 128),
    Shape("plain", BF16, 16, 8, 4, 64),
    Shape("fp8", BF16, 16, 8, 4, 128),
    Shape("int8", BF16, 16, 8, 4, 128),
    Shape("plain", BF16, 32, 2, 7, 64, window=100),
    Shape("plain", BF16, 16, 4, 8, 80, cap=30.0),
    Shape("plain", BF16, 16, 4, 2, 256, window=512, cap=50.0),
    Shape("plain", BF16, 16, 8, 8, 64, window=128, sinks=True),
    Shape("plain", BF16, 16, 1, 20, 96),
    Shape("plain", F16, 16, 8, 1, 128, sinks=True),
    Shape("plain", F16, 32, 4, 4, 32, window=33),
    Shape("plain", F32, 16, 2, 4, 64),
    Shape("plain", F32, 16, 2, 7, 80, window=100, cap=20.0),
    Shape("plain", F32, 32, 4, 1, 128, sinks=True),
    Shape("int8", BF16, 32, 2, 7, 80, window=100),
    Shape("int8", F32, 16, 2, 4, 64, cap=30.0),
    Shape("fp8", F16, 16, 4, 1, 96, window=64, sinks=True),
    Shape("fp8", F32, 32, 2, 4, 32),
]
SMALL = [
    Shape("plain", F32, 16, 2, 4, 32, window=20),
    Shape("plain", BF16, 32, 1, 7, 80, cap=5.0, sinks=True),
    Shape("int8", F16, 16, 1, 4, 64),
    Shape("fp8", BF16, 16, 1, 1, 32),
]


FILTERS: dict[str, dict[str, Any]] = {
    "no filter": {},
    "top-k": {"top_k": 40},
    "top-p": {"top_p": 0.9},
    "min-p": {"min_p": 0.05},
    "all": {"top_k": 500, "top_p": 0.95, "min_p": 0.01},
}


@dataclass(frozen=True)
class Lengths:
    """Contexts of sequences that decode, and contexts and new tokens of chunks; `shared`: see `page_tables`."""

    decoding: list[int]
    chunks: list[tuple[int, int]]
    shared: list[tuple[int, ...]]
    vocabulary: int


LONG = Lengths([1, 16, 300, 1000, 4097, 777, 801, 2048], [(5, 5), (900, 300), (2000, 1), (129, 128)], [], 151_936)
LONG.shared.extend([(10, 3, 4, 7), (40, 5, 6)])
SHORT = Lengths([1, 40, 50, 33], [(5, 5), (40, 9)], [(2, 1, 2, 3)], 1301)


def run(record: Record, bench: Bench) -> None:
    """All checks, into the table `checks`: what, the largest difference, the bound, and whether it holds."""
    small = bench.dry
    lengths = SHORT if small else LONG
    first, *others = SMALL if small else kept(SHAPES)
    # In a dry run without the interpreter there are but the twins, which these do not ask for.
    kernels = paged_attention.on_device(torch.empty(0, device=DEVICE))
    filters = FILTERS if not small else {name: FILTERS[name] for name in ("no filter", "all")}
    works: list[tuple[str, Callable[[], list[dict[str, Any]]]]] = [_shape(first, lengths)]
    works += [("layers, plain", lambda: check_layers("plain", small))]
    works += [("sampling", lambda: check_sampling(lengths.vocabulary, filters))] if kernels else []
    for dtype in (BF16, F32) if small else (BF16, F32, F16):
        works.append((f"heads, {dtype}", lambda dtype=dtype: check_heads(dtype, 300 if small else 50_001)))
    works += [("layers, fp8", lambda: check_layers("fp8", small)), *(_shape(shape, lengths) for shape in others)]
    if torch.cuda.is_available():
        compile_all([work for _, work in works])
    for name, work in works:
        record.case("checks", name, work)
    if not small:
        record.case("checks", "memory", check_memory)


def _shape(shape: Shape, lengths: Lengths) -> tuple[str, Callable[[], list[dict[str, Any]]]]:
    name = ", ".join(f"{key} {value}" for key, value in asdict(shape).items() if value)
    return name, lambda: check(shape, lengths, name)


def compile_all(works: list[Callable[[], object]]) -> None:
    """Compiles what they launch, on all processors at once; what they find meanwhile means nothing."""
    from qpdsl.executor.kernels.triton.common import queued

    with ThreadPoolExecutor(os.cpu_count()) as pool, queued(pool), redirect_stdout(io.StringIO()):
        for work in works:
            with suppress(Exception):
                work()


def kept(shapes: list[Shape]) -> list[Shape]:
    """Those whose keys and values this device keeps so."""
    return [shape for shape in shapes if paged_attention.unkept(shape.kind, torch.device(DEVICE)) is None]


def result(kernel: str, case: str, error: float, bound: float, why: str = "") -> dict[str, Any]:
    """A line of the table, printed as it is made. What is not a number is wrong, and JSON has no word for it."""
    finite = math.isfinite(error)
    passed = finite and error <= bound
    print(f"{kernel:10} {error:.1e} (≤ {bound:.0e}) {'ok' if passed else 'WRONG'}  {case}  {why}", flush=True)
    return {
        "kernel": kernel,
        "case": case,
        "error": error if finite else None,
        "bound": bound,
        "passed": passed,
        "why": why,
    }


@dataclass(frozen=True)
class Prepared:
    """Tensors of one shape: a batch of sequences that decode and of chunks, and new keys and values of all of them."""

    rows: KVRows
    batch: PagedBatch
    cascade: PrefixCascade | None
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scoring: Scoring


def prepared(shape: Shape, lengths: Lengths) -> Prepared:
    generator = torch.Generator().manual_seed(shape.dim)
    contexts = [*lengths.decoding, *(context for context, _ in lengths.chunks)]
    queries = [*(1 for _ in lengths.decoding), *(count for _, count in lengths.chunks)]
    shared = [(pages * 16 // shape.page_size, *members) for pages, *members in lengths.shared]
    tables, count = page_tables(contexts, shape.page_size, generator, shared)
    rows = make_rows(count, shape.page_size, shape.kv_heads, shape.dim, shape.dtype, shape.kind, generator)
    decodes = len(lengths.decoding)
    batch = make_batch(contexts, queries, tables, shape.page_size, decodes)
    cascade = plan(tables[:decodes], contexts[:decodes], shape.page_size, DEVICE, least=shape.page_size)
    heads = shape.kv_heads * shape.fold
    query = make_query(sum(queries), heads, shape.dim, shape.dtype, generator)
    key, value = (make_query(sum(queries), shape.kv_heads, shape.dim, shape.dtype, generator) for _ in range(2))
    sinks = torch.randn(heads, generator=generator).to(DEVICE) if shape.sinks else None
    scoring = Scoring(shape.dim**-0.5 * 2, shape.window, shape.cap, sinks)
    return Prepared(rows, batch, cascade, query, key, value, scoring)


def attended(made: Prepared) -> dict[str, Callable[[], torch.Tensor]]:
    """The ways to attend, by name. Each returns the results of all tokens, or of the first ones."""
    query, rows, batch, scoring = made.query, made.rows, made.batch, made.scoring
    decoding = replace(batch, cascade=made.cascade)
    attention, decodes = paged_attention.attention, batch.decodes
    return {
        "decode": lambda: attention(query, rows, batch, 1, scoring)[:decodes],
        "cascade": lambda: attention(query, rows, decoding, 1, scoring)[:decodes],
        "mixed": lambda: attention(query, rows, batch, 1, scoring),
        "prefill": lambda: attention(query, rows, replace(batch, decodes=0), 1, scoring),
        "fixed bits": lambda: attention(query, rows, batch, 1, scoring, deterministic=True),
    }


def launches() -> list[Callable[[], object]]:
    """What launches the attention kernels of all shapes, for whoever compiles them."""

    def launch(shape: Shape) -> None:
        made = prepared(shape, SHORT)
        for attend in attended(made).values():
            attend()
        paged_attention.store(made.rows, made.key, made.value, made.batch.slots, 1)

    return [lambda shape=shape: launch(shape) for shape in kept(SHAPES)]  # type: ignore[misc]


def check(shape: Shape, lengths: Lengths, name: str) -> list[dict[str, Any]]:
    """Each kernel's error against its twin; one that fails is wrong, and the next is tried.

    Of attention the error is the largest relative error of a token's vector, of `store` the number of wrong bytes.
    """
    made = prepared(shape, lengths)
    wanted = reference.attention(made.query, made.rows, made.batch, 1, made.scoring)

    def error(call: Callable[[], torch.Tensor]) -> float:
        out = call()
        right = wanted[: len(out)].flatten(1).float()
        relative = ((out.flatten(1).float() - right).norm(dim=1) / right.norm(dim=1)).max()
        return float(torch.nan_to_num(relative, nan=float("inf")))

    calls: list[tuple[str, float, Callable[[], float]]] = [
        (kernel, BOUNDS[shape.dtype], lambda call=call: error(call)) for kernel, call in attended(made).items()
    ]
    # The last: it changes the rows.
    calls.append(("store", 0.0, lambda: float(store_differs(made.rows, made.key, made.value, made.batch))))
    lines = []
    for kernel, most, call in calls:
        try:
            lines.append(result(kernel, name, call(), most))
        except Exception as failure:  # a compiler's, as a rule
            if torch.cuda.is_initialized():
                alive()
            lines.append(result(kernel, name, float("inf"), most, reason(failure)))
    return lines


def check_layers(kind: RowKind, small: bool) -> list[dict[str, Any]]:
    """What fused layers compute between their products, of a model of 8B: relative errors of rows, in its type."""
    dtype = F32 if small else BF16
    heads = HeadConstants(4, 2, 32) if small else HeadConstants(32, 8, 128)
    tokens, hidden, gated = (5, 64, 96) if small else (37, 4096, 14_336)
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int, like: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(like).to(DEVICE)

    norm = NormWeights(drawn(hidden, like=F32), 1e-5)
    residual, product, widened = drawn(tokens, hidden), drawn(tokens, hidden), drawn(tokens, 2 * gated)
    tables, count = page_tables([tokens], 16, generator)
    batch = make_batch([tokens], [tokens], tables, 16, 0)
    rows = make_rows(count, 16, heads.kv_heads, heads.dim, dtype, kind, generator)
    geometry = (rows.kind, rows.page_size, rows.kv_heads, rows.dim)
    data = rows.data.clone()
    twin = KVRows.plain(data) if kind == "plain" else KVRows.quantized(data, *geometry)
    joined, positions = drawn(tokens, heads.width), torch.arange(tokens, device=DEVICE)
    angles = torch.rand(tokens, heads.dim // 2, generator=generator) * 6
    rotations = torch.stack((angles.cos(), angles.sin()), -1).to(DEVICE)
    turned = (positions, batch.slots, rotations, heads)

    def error(mine: torch.Tensor, theirs: torch.Tensor) -> float:
        mine, theirs = mine.flatten(1).float(), theirs.flatten(1).float()
        return float(((mine - theirs).norm(dim=1) / theirs.norm(dim=1).clamp_min(1e-9)).max())

    addition = Addition(None, None)
    wanted_residual, wanted_joined, wanted_gate = residual.clone(), joined.clone(), widened.clone()
    wanted_norm = layer_twins.add_norm(wanted_residual, product, addition, norm)
    layer_twins.rotate_store(wanted_joined, *turned, twin, 1)
    layer_twins.gate(wanted_gate, None, "silu")
    normed = layers.add_norm(residual, product, addition, norm)
    queries = layers.rotate_store(joined, *turned, rows, 1)
    gate = layers.gate(widened, None, "silu")
    own = heads.heads * heads.dim
    # A key may be rounded to the neighbour of its twin's, and then a byte differs.
    wrong = (rows.data.view(torch.uint8) != twin.data.view(torch.uint8)).float().mean()
    return [
        result(
            "add norm",
            f"{hidden} wide",
            max(error(residual, wanted_residual), error(normed, wanted_norm)),
            BOUNDS[dtype],
        ),
        result("rotate", f"queries, {kind}", error(queries.flatten(1), wanted_joined[:, :own]), BOUNDS[dtype]),
        result("rotate", f"share of stored bytes, {kind}", float(wrong), 1e-2),
        result("gate", f"{gated} wide", error(gate, wanted_gate[:, :gated]), BOUNDS[dtype]),
    ]


def check_memory() -> list[dict[str, Any]]:
    """A small case under compute-sanitizer, where it is installed: reads and writes outside of tensors."""
    if (tool := shutil.which("compute-sanitizer")) is None:
        return []
    command = [tool, "--error-exitcode", "9", sys.executable, "-m", "benchmarks.gpu.kernel_checks"]
    # Its own allocator would hide what lies between two tensors.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SANITIZED)
    except subprocess.TimeoutExpired:
        return [result("memory", "compute-sanitizer", 0.0, 0.0, f"not done within {_SANITIZED} s")]
    found = [line for line in done.stdout.splitlines() if "Invalid" in line or "ERROR SUMMARY" in line]
    return [result("memory", "compute-sanitizer", float(done.returncode), 0.0, "; ".join(found[:2]))]


def store_differs(rows: KVRows, key: torch.Tensor, value: torch.Tensor, batch: PagedBatch) -> int:
    """Stores new tokens; how many bytes of the rows are not the twin's."""
    data = rows.data.clone()
    geometry = (rows.kind, rows.page_size, rows.kv_heads, rows.dim)
    twin = KVRows.plain(data) if rows.kind == "plain" else KVRows.quantized(data, *geometry)
    paged_attention.store(rows, key, value, batch.slots, 1)
    reference.store(twin, key, value, batch.slots, 1)
    return int((rows.data.view(torch.uint8) != twin.data.view(torch.uint8)).sum())


def check_sampling(vocabulary: int, filters: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Tokens that are not the sampler's though no near tie explains it, and the largest log-probability error.

    Without filters, and with each: their cuts are found without sorting.
    """
    from qpdsl.executor.engine.batch.staging import Staging
    from qpdsl.executor.engine.step import sampler
    from qpdsl.executor.kernels.triton.sample import sample
    from qpdsl.executor.requests.request import SamplingParams

    generator = torch.Generator().manual_seed(0)
    temperatures = [0.0, 1.0, 0.7, 1.0, 1.3, 0.0, 0.5, 1.0]
    batch = len(temperatures)
    logits = torch.randn(batch, vocabulary, generator=generator) * torch.linspace(0, 6, batch)[:, None]
    keys = [(1 << 63) - 1 - 7919 * row for row in range(batch)]
    positions = list(range(0, batch * 1000, 1000))
    on_device = sampler.DeviceSampler(Staging(str(DEVICE)), sample)
    lines = []
    for name, asked in filters.items():
        params = [SamplingParams(temperature, **asked) for temperature in temperatures]
        wanted = sampler.sample(logits, params, keys, positions)
        drawn = on_device(logits.to(DEVICE), params, keys, positions)
        differ = (drawn.tokens.cpu() != wanted.tokens) & ~(wanted.near_ties & drawn.near_ties.cpu())
        error = float((drawn.logprobs.cpu() - wanted.logprobs).abs().max())
        lines.append(result("sample", f"tokens, {name}", float(differ.sum()), 0.0))
        lines.append(result("sample", f"log-probabilities, {name}", error, 1e-4))
    return lines


def check_heads(dtype: torch.dtype, vocabulary: int) -> list[dict[str, Any]]:
    """The same of the head, of every kind: under masks and without, biased, soft-capped."""
    from qpdsl.executor.engine.step.sampler import NEAR_TIE_GAP
    from qpdsl.executor.kernels.data.token_draws import Drawn
    from qpdsl.executor.kernels.layers import dense
    from tests.support.executor.head_case import HeadCase, head_case

    def compared(kernel: str, drawn: Drawn, case: HeadCase) -> list[dict[str, Any]]:
        (tokens, logprobs, gaps), (wanted, logits) = drawn, case.wanted()
        differ = (tokens != wanted.tokens) & ~(wanted.near_ties & (gaps < NEAR_TIE_GAP))
        exact = logits.double().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        error = float((logprobs - exact).abs().max())
        name = f"{vocabulary} ids, {len(case.allowed)} draws, {dtype}"
        tokens_line = result(kernel, f"tokens, {name}", float(differ.sum()), 0.0)
        return [tokens_line, result(kernel, f"log-probabilities, {name}", error, 1e-4)]

    lines = []
    for draws in (5,) if vocabulary < 1000 else (1, 5, 33, 64):
        case = head_case(vocabulary, 200, [draw % 4 for draw in range(draws)], dtype, biased=draws == 5, softcap=30.0)
        lines += compared("dense", dense(case.hidden, case.head, case.draws, *case.lines()), case)
    return lines


if __name__ == "__main__":
    for tried in (SHAPES[0], SHAPES[2]):
        for attend in attended(prepared(tried, SHORT)).values():
            attend()
    torch.cuda.synchronize()

"""How fast the Triton kernels are, against what the device can do: copy bandwidth, measured here, or a matrix product.

Each figure is the median over replays of a captured graph of many calls; calls go round the layers of a cache several
times the size of the L2, so that each reads what it must from memory. Bytes are counted once: keys and values that a
sequence sees, queries, results. `best_tuning` tries other block sizes for decode attention.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from benchmarks.gpu.record import Record, alive
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind, row_bytes
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.data.shared_prefixes import plan
from qpdsl.executor.kernels.triton.attention import decode, prefill
from qpdsl.executor.kernels.triton.attention.tuning import Tuning
from qpdsl.executor.kernels.triton.heads import sample

PAGE = 16
KINDS: tuple[RowKind, ...] = ("int8", "fp8", "int4")
BF16 = torch.bfloat16
# Key heads, queries a key head, width: of a model of 8B and of one of 1B parameters (Llama 3).
MODELS = {"8B": (8, 4, 128), "1B": (8, 4, 64)}


def run(record: Record, tune: bool = False) -> None:
    """All measurements; those that say most come first."""
    bandwidth = copy_bandwidth()
    record.note(copy_gb_per_s=round(bandwidth / 1e9, 1))
    decodes: list[tuple[str, RowKind, int, int, int | None]] = [
        ("8B", "plain", 64, 4096, None),
        ("8B", "plain", 1, 4096, None),
        *(("8B", kind, 64, 4096, None) for kind in KINDS),
        *(("8B", "plain", batch, 4096, None) for batch in (16, 256)),
        *(("8B", "plain", batch, 512, None) for batch in (1, 16, 64, 256)),
        ("8B", "plain", 1, 32768, None),
        ("8B", "plain", 16, 32768, None),
        ("8B", "plain", 64, 8192, 1024),
        *(("1B", "plain", batch, 4096, None) for batch in (1, 16, 64, 256)),
    ]
    for attended in decodes[:2]:
        record.case("decode", named(*attended), lambda g=attended: decode_case(*g, bandwidth))
    peak = record.attempt("matrix product", matrix_peak) or float("nan")
    record.note(matrix_tflop_per_s=round(peak / 1e12, 1) if peak == peak else None)
    for sizes in ((1, 2048, 0), (4, 512, 4096), (1, 8192, 0), (16, 128, 2048)):
        record.case("prefill", named(*sizes), lambda g=sizes: prefill_case(*g, peak))
    for sizes in ((64, 1024, 128), (64, 8192, 256), (16, 1024, 128), (256, 1024, 64)):
        record.case("cascade", named(*sizes), lambda g=sizes: cascade_case(*g))
    for attended in decodes[2:]:
        record.case("decode", named(*attended), lambda g=attended: decode_case(*g, bandwidth))
    record.case("ragged", "64 to 16384 tokens", lambda: ragged_case(bandwidth))
    for kind, tokens in product(("plain", *KINDS), (64, 16384)):
        record.case("store", named(kind, tokens), lambda k=kind, t=tokens: store_case(k, t, bandwidth))
    for batch in (1, 16, 64, 256):
        record.case("sample", named(batch), lambda b=batch: sample_case(b, 128_256, bandwidth))
    if tune:
        for tried in (("8B", 64, 4096), ("8B", 1, 4096), ("1B", 64, 4096)):
            record.case("tuning", named(*tried), lambda g=tried: best_tuning(*g))


def named(*parts: object) -> str:
    return " ".join(str(part) for part in parts if part is not None)


def seconds(call: Callable[[int], object], layers: int, calls: int = 24, replays: int = 15) -> float:
    """Of one `call(layer)`: the median over replays of a graph with calls going round the layers."""
    for layer in range(min(layers, 3)):
        call(layer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(calls):
            call(index % layers)
    graph.replay()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000 / calls)
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of the fastest of three sizes of device-to-device copies."""
    best = 0.0
    for mebibytes in (256, 1024, 2048):
        source = torch.randint(0, 255, (mebibytes << 20,), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        best = max(best, 2 * source.numel() / seconds(lambda _, s=source, t=target: t.copy_(s), 1, calls=4))
    return best


def matrix_peak() -> float:
    """Floating-point operations a second of a bfloat16 product of random 8192 × 8192 matrices."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=BF16) for _ in range(2))
    return 2 * 8192**3 / seconds(lambda _: a @ b, 1, calls=4)


def cache(
    name: str, kind: RowKind, contexts: list[int], queries: list[int], spare: int = 0
) -> tuple[KVRows, PagedBatch, int]:
    """Rows of random bytes for several layers, their sequences on shuffled pages, and how many layers.

    `spare`: pages that each sequence may hold beyond its context.
    """
    kv_heads, _, dim = MODELS[name]
    size = row_bytes(kind, BF16, PAGE, kv_heads, dim)
    counts = [-(-length // PAGE) + spare for length in contexts]
    free = torch.cuda.mem_get_info()[0]
    enough = 4 * torch.cuda.get_device_properties(0).L2_cache_size
    layers = max(1, min(16, enough // (sum(counts) * size) + 1, int(0.7 * free) // (sum(counts) * size)))
    total = sum(counts) * layers
    if kind == "plain":
        rows = KVRows.plain(torch.empty(total, PAGE, 2, kv_heads, dim, dtype=BF16, device="cuda").normal_())
    else:
        # Bytes of small numbers: no e4m3 or float16 pattern among them is not a number.
        rows = KVRows.quantized(
            torch.randint(0, 120, (total, size), dtype=torch.uint8, device="cuda"), kind, PAGE, kv_heads, dim
        )
        for scales in rows.split()[1:]:
            scales.fill_(0.01)
    order = torch.randperm(sum(counts), dtype=torch.int32) * layers
    pages = torch.nn.utils.rnn.pad_sequence(list(order.split(counts)), batch_first=True).cuda()
    slots = []
    for line, length, count in zip(pages.cpu().long(), contexts, queries, strict=True):
        places = torch.arange(length - count, length)
        slots.append(line[places // PAGE] * PAGE + places % PAGE)
    start = torch.tensor([0, *queries]).cumsum(0).int().cuda()
    lengths = torch.tensor(contexts, dtype=torch.int32, device="cuda")
    decodes = len(contexts) if max(queries) == 1 else 0
    batch = PagedBatch(pages, lengths, torch.cat(slots).cuda(), start, decodes, max(contexts), max(queries))
    return rows, batch, layers


def queries_of(name: str, tokens: int) -> torch.Tensor:
    kv_heads, fold, dim = MODELS[name]
    return torch.randn(tokens, kv_heads * fold, dim, device="cuda", dtype=BF16)


def scoring_of(name: str, window: int | None = None) -> Scoring:
    return Scoring(MODELS[name][2] ** -0.5, window)


def attention_bytes(name: str, kind: RowKind, seen: int, queries: int) -> int:
    """Bytes that attention over `seen` tokens' keys and values must move, for so many queries."""
    kv_heads, fold, dim = MODELS[name]
    return seen * row_bytes(kind, BF16, 1, kv_heads, dim) + 2 * queries * kv_heads * fold * dim * BF16.itemsize


def decode_case(
    name: str, kind: RowKind, batch: int, context: int, window: int | None, bandwidth: float
) -> dict[str, Any]:
    rows, metadata, layers = cache(name, kind, [context] * batch, [1] * batch)
    query, scoring = queries_of(name, batch), scoring_of(name, window)
    time = seconds(lambda layer: paged_attention.decode(query, rows, metadata, layer, scoring), layers)
    moved = attention_bytes(name, kind, batch * min(context, window or context), batch)
    out = torch.empty_like(query)
    steady = seconds(
        lambda layer: prefill.prefill(query, rows, metadata, layer, scoring, out, deterministic=True), layers, 4
    )
    return {
        "model": name,
        "kv": kind,
        "sequences": batch,
        "context": context,
        "window": window,
        "us": round(time * 1e6, 2),
        "mib": round(moved / 2**20, 2),
        "of_copy": round(moved / time / bandwidth, 3),
        "deterministic_us": round(steady * 1e6, 2),
    }


def ragged_case(bandwidth: float) -> dict[str, Any]:
    """64 sequences of 64 to 16384 tokens, evenly spread in the logarithm."""
    contexts = [int(64 * 256 ** (index / 63)) for index in range(64)]
    rows, metadata, layers = cache("8B", "plain", contexts, [1] * 64)
    query, scoring = queries_of("8B", 64), scoring_of("8B")
    time = seconds(lambda layer: paged_attention.decode(query, rows, metadata, layer, scoring), layers)
    moved = attention_bytes("8B", "plain", sum(contexts), 64)
    return {"sequences": 64, "us": round(time * 1e6, 2), "of_copy": round(moved / time / bandwidth, 3)}


def prefill_case(batch: int, chunk: int, cached: int, peak: float) -> dict[str, Any]:
    rows, metadata, layers = cache("8B", "plain", [cached + chunk] * batch, [chunk] * batch)
    query, scoring = queries_of("8B", batch * chunk), scoring_of("8B")
    time = seconds(lambda layer: paged_attention.prefill(query, rows, metadata, layer, scoring), layers, calls=4)
    kv_heads, fold, dim = MODELS["8B"]
    operations = 4 * kv_heads * fold * dim * batch * (chunk * cached + chunk * (chunk + 1) // 2)
    return {
        "sequences": batch,
        "chunk": chunk,
        "cached": cached,
        "us": round(time * 1e6, 1),
        "tflop_per_s": round(operations / time / 1e12, 1),
        "of_matrix": round(operations / time / peak, 3) if peak == peak else None,
    }


def cascade_case(batch: int, prefix: int, suffix: int) -> dict[str, Any]:
    """`batch` samples of one prompt: shared prefix read once, against read by each."""
    contexts = [prefix + suffix] * batch
    rows, metadata, layers = cache("8B", "plain", contexts, [1] * batch)
    metadata.pages[:, : prefix // PAGE] = metadata.pages[0, : prefix // PAGE]
    shared = plan(metadata.pages.tolist(), contexts, PAGE, metadata.pages.device)
    query, scoring = queries_of("8B", batch), scoring_of("8B")
    alone = seconds(lambda layer: paged_attention.decode(query, rows, metadata, layer, scoring), layers)
    with_it = replace(metadata, cascade=shared)
    together = seconds(lambda layer: paged_attention.cascade(query, rows, with_it, layer, scoring), layers)
    return {
        "sequences": batch,
        "prefix": prefix,
        "own": suffix,
        "decode_us": round(alone * 1e6, 2),
        "cascade_us": round(together * 1e6, 2),
        "speedup": round(alone / together, 2),
    }


def store_case(kind: RowKind, tokens: int, bandwidth: float) -> dict[str, Any]:
    rows, metadata, layers = cache("8B", kind, [tokens], [tokens])
    kv_heads, _, dim = MODELS["8B"]
    key, value = (torch.randn(tokens, kv_heads, dim, device="cuda", dtype=BF16) for _ in range(2))
    time = seconds(lambda layer: paged_attention.store(rows, key, value, metadata.slots, layer), layers)
    moved = tokens * (row_bytes("plain", BF16, 1, kv_heads, dim) + row_bytes(kind, BF16, 1, kv_heads, dim))
    return {"kv": kind, "tokens": tokens, "us": round(time * 1e6, 2), "of_copy": round(moved / time / bandwidth, 3)}


def sample_case(batch: int, vocabulary: int, bandwidth: float) -> dict[str, Any]:
    copies = max(1, min(16, (256 << 20) // (batch * vocabulary * 4)))
    logits = torch.randn(copies, batch, vocabulary, device="cuda") * 4
    temperatures = torch.ones(batch, device="cuda")
    keys = torch.arange(batch, device="cuda") * 7919
    positions = torch.arange(batch, device="cuda")
    time = seconds(lambda index: sample.sample(logits[index], temperatures, keys, positions), copies)
    moved = batch * vocabulary * 4
    return {"rows": batch, "ids": vocabulary, "us": round(time * 1e6, 2), "of_copy": round(moved / time / bandwidth, 3)}


def best_tuning(name: str, batch: int, context: int) -> dict[str, Any]:
    """Decode attention with other block sizes: the five fastest, and what `tuning.py` chooses as `chosen_us`."""
    rows, metadata, layers = cache(name, "plain", [context] * batch, [1] * batch)
    query, scoring = queries_of(name, batch), scoring_of(name)
    out = torch.empty_like(query)
    timings: list[tuple[float, str]] = []
    for keys, ahead, warps, splits in product((32, 64, 128), (1, 2, 3), (2, 4, 8), (None, 1, 4, 8, 16, 32)):
        if splits is not None and not 132 <= batch * MODELS[name][0] * splits <= 132 * 16:
            continue
        tuning = Tuning(keys=keys, ahead=ahead, warps=warps, splits=splits)
        try:
            time = seconds(
                lambda layer, t=tuning: decode.decode(query, rows, metadata, layer, scoring, out, t),
                layers,
                12,
                7,
            )
        except Exception as error:  # Too much shared memory, as a rule: the next may fit.
            alive()
            timings.append((float("inf"), f"{tuning}: {type(error).__name__}"))
            continue
        timings.append((time, str(tuning)))
    chosen = seconds(lambda layer: decode.decode(query, rows, metadata, layer, scoring, out), layers)
    fastest = [{"us": round(time * 1e6, 2), "tuning": text} for time, text in sorted(timings)[:5]]
    return {"model": name, "sequences": batch, "context": context, "chosen_us": round(chosen * 1e6, 2), "best": fastest}

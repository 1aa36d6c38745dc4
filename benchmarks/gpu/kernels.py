"""How fast the Triton kernels are, against what the device can do: copy bandwidth, measured here, or a matrix product.

Each figure is the median over replays of a captured graph of many calls; calls go round the layers of a cache several
times the size of the L2, so that each reads what it must from memory. Bytes are counted once: keys and values that a
sequence sees, queries, results. `best_tuning` tries other block sizes for decode attention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.record import Record, alive
from qpdsl.executor.engine.step import sampler
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind, row_bytes
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.data.shared_prefixes import plan
from qpdsl.executor.kernels.data.token_draws import Filters, TokenDraws
from qpdsl.executor.kernels.triton import sample, step_attention, tuning
from qpdsl.executor.requests.request import SamplingParams

PAGE = 16
# Other sizes of a page, to see whether 16 tokens cost anything.
PAGES = (16, 32, 64)
KINDS: tuple[RowKind, ...] = ("fp8",)
# Key heads, queries a key head, width: of a model of 8B and of one of 1B parameters (Llama 3), and of none.
MODELS = {"8B": (8, 4, 128), "1B": (8, 4, 64), "tiny": (2, 2, 16)}


@dataclass(frozen=True)
class Attended:
    """Sequences of one model that decode; `window` None for all of their context."""

    model: str
    kind: RowKind
    sequences: int
    context: int
    window: int | None = None
    page: int = PAGE

    @property
    def name(self) -> str:
        return named(self.model, self.kind, self.sequences, self.context, self.window, f"pages of {self.page}")


@dataclass(frozen=True)
class Plan:
    """What is measured; what says most comes first. Of prefill: sequences, new tokens, cached tokens. Of a cascade:
    sequences, shared tokens, own tokens. `ids`: of the vocabulary that is sampled from."""

    first: tuple[Attended, ...]
    prefills: tuple[tuple[int, int, int], ...]
    cascades: tuple[tuple[int, int, int], ...]
    decodes: tuple[Attended, ...]
    stored: tuple[int, ...]
    sampled: tuple[int, ...]
    ids: int
    model: str


PLAN = Plan(
    (
        Attended("8B", "plain", 64, 4096),
        Attended("8B", "plain", 1, 4096),
        *(Attended("8B", kind, 64, 4096) for kind in KINDS),
    ),
    ((1, 2048, 0), (4, 512, 4096), (1, 8192, 0), (16, 128, 2048)),
    ((64, 1024, 128), (64, 8192, 256), (16, 1024, 128), (256, 1024, 64)),
    (
        *(Attended("8B", "plain", batch, 4096) for batch in (16, 256)),
        *(Attended("8B", "plain", batch, 512) for batch in (1, 16, 64, 256)),
        Attended("8B", "plain", 1, 32768),
        Attended("8B", "plain", 16, 32768),
        Attended("8B", "plain", 64, 8192, 1024),
        *(Attended("8B", "plain", 64, 4096, None, page) for page in PAGES[1:]),
        *(Attended("1B", "plain", batch, 4096) for batch in (1, 16, 64, 256)),
        *(Attended("1B", kind, 64, 4096) for kind in KINDS),
    ),
    (64, 16384),
    (1, 16, 64, 256),
    128_256,
    "8B",
)
DRY = Plan(
    (Attended("tiny", "plain", 2, 40), Attended("tiny", "fp8", 1, 40)),
    ((1, 8, 20),),
    ((2, 32, 5),),
    (Attended("tiny", "plain", 2, 40, 16), Attended("tiny", "plain", 2, 40, None, 32)),
    (4,),
    (2,),
    500,
    "tiny",
)


def run(record: Record, bench: Bench, tune: bool = False) -> None:
    """All measurements; those that say most come first."""
    plan = DRY if bench.dry else PLAN
    bandwidth = bench.copy_bandwidth()
    record.note(copy_gb_per_s=round(bandwidth / 1e9, 1))
    for attended in plan.first:
        record.case("decode", attended.name, lambda g=attended: decode_case(g, bench, bandwidth))
    peak = record.attempt("matrix product", bench.matrix_peak) or float("nan")
    record.note(matrix_tflop_per_s=round(peak / 1e12, 1) if peak == peak else None)
    longest = 40 if bench.dry else 16384
    record.case("ragged", f"to {longest} tokens", lambda: ragged_case(plan.model, longest, bench, bandwidth))
    for sizes in plan.cascades:
        record.case("cascade", named(*sizes), lambda g=sizes: cascade_case(plan.model, *g, bench))
    for sizes in plan.prefills:
        record.case("prefill", named(*sizes), lambda g=sizes: prefill_case(plan.model, *g, bench, peak))
    for attended in plan.decodes:
        record.case("decode", attended.name, lambda g=attended: decode_case(g, bench, bandwidth))
    for kind, tokens in product(("plain", *KINDS), plan.stored):
        record.case(
            "store", named(kind, tokens), lambda k=kind, t=tokens: store_case(plan.model, k, t, bench, bandwidth)
        )
    for batch, top_p in product(plan.sampled, (None, 0.9)):
        record.case(
            "sample", named(batch, top_p), lambda b=batch, p=top_p: sample_case(b, p, plan.ids, bench, bandwidth)
        )
    if tune:
        for tried in (Attended("8B", "plain", 64, 4096), Attended("8B", "plain", 1, 4096)):
            record.case("tuning", tried.name, lambda g=tried: best_tuning(g, bench))


def named(*parts: object) -> str:
    return " ".join(str(part) for part in parts if part is not None)


def cache(
    name: str, kind: RowKind, contexts: list[int], queries: list[int], bench: Bench, page: int = PAGE
) -> tuple[KVRows, PagedBatch, int]:
    """Rows of random bytes for several layers, their sequences on shuffled pages, and how many layers."""
    kv_heads, _, dim = MODELS[name]
    size = row_bytes(kind, bench.dtype, page, kv_heads, dim)
    counts = [-(-length // page) for length in contexts]
    enough = 4 * bench.l2
    layers = max(1, min(16, enough // (sum(counts) * size) + 1, int(0.7 * bench.memory) // (sum(counts) * size)))
    total = sum(counts) * layers
    if kind == "plain":
        numbers = torch.empty(total, page, 2, kv_heads, dim, dtype=bench.dtype, device=bench.device).normal_()
        rows = KVRows.plain(numbers)
    else:
        # Bytes of small numbers: no e4m3 or float16 pattern among them is not a number.
        data = torch.randint(0, 120, (total, size), dtype=torch.uint8, device=bench.device)
        rows = KVRows.quantized(data, kind, page, kv_heads, dim)
        for scales in rows.split()[1:]:
            scales.fill_(0.01)
    order = torch.randperm(sum(counts), dtype=torch.int32) * layers
    pages = torch.nn.utils.rnn.pad_sequence(list(order.split(counts)), batch_first=True).to(bench.device)
    slots = []
    for line, length, count in zip(pages.cpu().long(), contexts, queries, strict=True):
        places = torch.arange(length - count, length)
        slots.append(line[places // page] * page + places % page)
    start = torch.tensor([0, *queries]).cumsum(0).int().to(bench.device)
    lengths = torch.tensor(contexts, dtype=torch.int32, device=bench.device)
    decodes = len(contexts) if max(queries) == 1 else 0
    at = torch.cat(slots).to(bench.device)
    return rows, PagedBatch(pages, lengths, at, start, decodes, max(contexts), max(queries)), layers


def queries_of(name: str, tokens: int, bench: Bench) -> torch.Tensor:
    kv_heads, fold, dim = MODELS[name]
    return torch.randn(tokens, kv_heads * fold, dim, device=bench.device, dtype=bench.dtype)


def scoring_of(name: str, window: int | None = None) -> Scoring:
    return Scoring(MODELS[name][2] ** -0.5, window)


def attention_bytes(name: str, kind: RowKind, seen: int, queries: int, bench: Bench) -> int:
    """Bytes that attention over `seen` tokens' keys and values must move, for so many queries."""
    kv_heads, fold, dim = MODELS[name]
    return seen * row_bytes(kind, bench.dtype, 1, kv_heads, dim) + 2 * queries * kv_heads * fold * dim * (
        bench.dtype.itemsize
    )


def decode_case(attended: Attended, bench: Bench, bandwidth: float) -> dict[str, Any]:
    """Decode attention, and the same as deterministic steps have it."""
    name, kind, batch, context = attended.model, attended.kind, attended.sequences, attended.context
    rows, metadata, layers = cache(name, kind, [context] * batch, [1] * batch, bench, attended.page)
    query, scoring = queries_of(name, batch, bench), scoring_of(name, attended.window)
    time = bench.seconds(lambda layer: paged_attention.attention(query, rows, metadata, layer, scoring), layers)
    seen = batch * min(context, attended.window or context)
    moved = attention_bytes(name, kind, seen, batch, bench)
    steady = bench.seconds(
        lambda layer: paged_attention.attention(query, rows, metadata, layer, scoring, deterministic=True), layers, 4
    )
    return {
        "model": name,
        "kv": kind,
        "sequences": batch,
        "context": context,
        "window": attended.window,
        "page": attended.page,
        "us": round(time * 1e6, 2),
        "mib": round(moved / 2**20, 2),
        "of_copy": round(moved / time / bandwidth, 3),
        "deterministic_us": round(steady * 1e6, 2),
    }


def ragged_case(name: str, longest: int, bench: Bench, bandwidth: float) -> dict[str, Any]:
    """64 sequences of up to `longest` tokens, evenly spread in the logarithm."""
    least = max(1, longest // 256)
    contexts = [int(least * (longest / least) ** (index / 63)) for index in range(64)]
    rows, metadata, layers = cache(name, "plain", contexts, [1] * 64, bench)
    query, scoring = queries_of(name, 64, bench), scoring_of(name)
    time = bench.seconds(lambda layer: paged_attention.attention(query, rows, metadata, layer, scoring), layers)
    moved = attention_bytes(name, "plain", sum(contexts), 64, bench)
    return {"sequences": 64, "us": round(time * 1e6, 2), "of_copy": round(moved / time / bandwidth, 3)}


def prefill_case(name: str, batch: int, chunk: int, cached: int, bench: Bench, peak: float) -> dict[str, Any]:
    rows, metadata, layers = cache(name, "plain", [cached + chunk] * batch, [chunk] * batch, bench)
    query, scoring = queries_of(name, batch * chunk, bench), scoring_of(name)
    time = bench.seconds(
        lambda layer: paged_attention.attention(query, rows, metadata, layer, scoring), layers, calls=4
    )
    kv_heads, fold, dim = MODELS[name]
    operations = 4 * kv_heads * fold * dim * batch * (chunk * cached + chunk * (chunk + 1) // 2)
    return {
        "sequences": batch,
        "chunk": chunk,
        "cached": cached,
        "us": round(time * 1e6, 1),
        "tflop_per_s": round(operations / time / 1e12, 1),
        "of_matrix": round(operations / time / peak, 3) if peak == peak else None,
    }


def cascade_case(name: str, batch: int, prefix: int, suffix: int, bench: Bench) -> dict[str, Any]:
    """`batch` samples of one prompt: shared prefix read once, against read by each."""
    contexts = [prefix + suffix] * batch
    rows, metadata, layers = cache(name, "plain", contexts, [1] * batch, bench)
    metadata.pages[:, : prefix // PAGE] = metadata.pages[0, : prefix // PAGE]
    shared = plan(metadata.pages.tolist(), contexts, PAGE, metadata.pages.device, least=PAGE)
    query, scoring = queries_of(name, batch, bench), scoring_of(name)
    alone = bench.seconds(lambda layer: paged_attention.attention(query, rows, metadata, layer, scoring), layers)
    with_it = replace(metadata, cascade=shared)
    together = bench.seconds(lambda layer: paged_attention.attention(query, rows, with_it, layer, scoring), layers)
    return {
        "sequences": batch,
        "prefix": prefix,
        "own": suffix,
        "decode_us": round(alone * 1e6, 2),
        "cascade_us": round(together * 1e6, 2),
        "speedup": round(alone / together, 2),
    }


def store_case(name: str, kind: RowKind, tokens: int, bench: Bench, bandwidth: float) -> dict[str, Any]:
    rows, metadata, layers = cache(name, kind, [tokens], [tokens], bench)
    kv_heads, _, dim = MODELS[name]
    like: dict[str, Any] = {"device": bench.device, "dtype": bench.dtype}
    key, value = (torch.randn(tokens, kv_heads, dim, **like) for _ in range(2))
    time = bench.seconds(lambda layer: paged_attention.store(rows, key, value, metadata.slots, layer), layers)
    moved = tokens * sum(row_bytes(which, bench.dtype, 1, kv_heads, dim) for which in ("plain", kind))
    return {"kv": kind, "tokens": tokens, "us": round(time * 1e6, 2), "of_copy": round(moved / time / bandwidth, 3)}


def sample_case(batch: int, top_p: float | None, vocabulary: int, bench: Bench, bandwidth: float) -> dict[str, Any]:
    copies = max(1, min(16, (4 * bench.l2) // (batch * vocabulary * 4)))
    logits = torch.randn(copies, batch, vocabulary, device=bench.device) * 4
    draws = draws_of(batch, bench)
    time = bench.seconds(lambda index: drawn(logits[index], draws, top_p), copies)
    moved = batch * vocabulary * 4
    return {
        "rows": batch,
        "top_p": top_p,
        "ids": vocabulary,
        "us": round(time * 1e6, 2),
        "of_copy": round(moved / time / bandwidth, 3),
    }


def draws_of(batch: int, bench: Bench) -> TokenDraws:
    """A draw for each row, at temperature 1."""
    numbers = torch.arange(batch, device=bench.device)
    return TokenDraws(numbers.int(), torch.ones(batch, device=bench.device), numbers * 7919, numbers)


def drawn(logits: torch.Tensor, draws: TokenDraws, top_p: float | None = None) -> object:
    """Tokens drawn from logits float32 [B, V]: by the kernel, or by torch where it does not run."""
    if not paged_attention.on_device(logits):
        params = [SamplingParams(1.0, top_p=top_p)] * draws.size
        return sampler.sample(logits, params, draws.keys.tolist(), draws.positions.tolist())
    filters = None
    if top_p is not None:
        off = torch.zeros_like(draws.rows)
        kept = torch.full((draws.size,), top_p, dtype=torch.float64, device=logits.device)
        filters = Filters(off, kept, torch.zeros_like(kept), draws.rows, draws.size)
    return sample.sample(logits, draws, filters=filters)


def best_tuning(attended: Attended, bench: Bench) -> dict[str, Any]:
    """Decode attention with other block sizes: the five fastest, and what `tuning.py` chooses as `chosen_us`."""
    name, batch = attended.model, attended.sequences
    rows, metadata, layers = cache(name, "plain", [attended.context] * batch, [1] * batch, bench)
    query, scoring = queries_of(name, batch, bench), scoring_of(name)
    out = torch.empty_like(query)
    timings: list[tuple[float, str]] = []
    usual = tuning.for_decode(rows, MODELS[name][1])
    for keys, ahead, warps in product((32, 64, 128), (1, 2, 3), (2, 4, 8)):
        tried = replace(usual, keys=keys, ahead=ahead, warps=warps)
        try:
            time = bench.seconds(
                lambda layer, t=tried: step_attention.attend(query, rows, metadata, layer, scoring, out, t),
                layers,
                12,
                7,
            )
        except Exception as error:  # Too much shared memory, as a rule: the next may fit.
            alive()
            timings.append((float("inf"), f"{tried}: {type(error).__name__}"))
            continue
        timings.append((time, str(tried)))
    chosen = bench.seconds(lambda layer: step_attention.attend(query, rows, metadata, layer, scoring, out), layers)
    fastest = [{"us": round(time * 1e6, 2), "tuning": text} for time, text in sorted(timings)[:5]]
    return {
        "model": name,
        "sequences": batch,
        "context": attended.context,
        "chosen_us": round(chosen * 1e6, 2),
        "best": fastest,
    }

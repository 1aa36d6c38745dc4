"""How fast the heads are: dense and sparse kernels over how many ids are allowed, against product and draw apart.

Times are those of `Bench.seconds`: calls go round copies of the weights that together are several times the size of
the L2. Bytes are those of the weights that are read, once, though each draw has a list of its own. The crossover is the
fewest allowed ids, of those tried, with which the dense kernel under a mask is faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.kernels import drawn, draws_of, named
from benchmarks.gpu.record import Record
from qpdsl.executor.kernels.data.token_draws import HeadWeights
from qpdsl.executor.kernels.layers import dense, sparse

# Ids and width: of an 8B model (Llama 3), of Gemma 3 270M and of SmolLM2 135M.
HEADS = ((128_256, 4096), (262_144, 640), (49_152, 576))
_DRY_HEADS = ((500, 16),)
BATCHES = (1, 8, 64)
ALLOWED = (1, 16, 64, 256, 1024, 4096, 16_384, 65_536)
# Where the lists of all draws have more ids than so many vocabularies, nobody doubts which head is faster.
MAX_VOCABULARIES = 16


def run(record: Record, bench: Bench) -> None:
    """Each head at each batch: a line of `dense`, and one of `sparse` for each number of allowed ids."""
    bandwidth = bench.copy_bandwidth()
    record.note(copy_gb_per_s=round(bandwidth / 1e9, 1))
    for vocabulary, width in _DRY_HEADS if bench.dry else HEADS:
        for batch in BATCHES[:2] if bench.dry else BATCHES:
            record.case(
                "heads",
                named(vocabulary, width, batch),
                lambda v=vocabulary, w=width, b=batch: head_case(v, w, b, bench, bandwidth),
            )


def head_case(vocabulary: int, width: int, batch: int, bench: Bench, bandwidth: float) -> list[dict[str, Any]]:
    """A line without a mask, then one for each number of allowed ids; every draw allows others."""
    size = vocabulary * width * bench.dtype.itemsize
    copies = max(1, min(16, 4 * bench.l2 // size + 1))
    weights = torch.randn(copies, vocabulary, width, device=bench.device, dtype=bench.dtype)
    hidden = torch.randn(batch, width, device=bench.device, dtype=bench.dtype)
    draws = draws_of(batch, bench)

    def product_and_draw(index: int) -> object:
        return drawn(linear(hidden, weights[index]).float(), draws)

    apart = bench.seconds(product_and_draw, copies, 8)
    free = bench.seconds(lambda index: dense(hidden, HeadWeights(weights[index]), draws), copies, 8)
    shared: dict[str, Any] = {"ids": vocabulary, "width": width, "draws": batch}
    lines = [
        {
            **shared,
            "allowed": None,
            "apart_us": round(apart * 1e6, 2),
            "dense_us": round(free * 1e6, 2),
            "sparse_us": None,
            "speedup": round(apart / free, 2),
            "of_copy": round(size / free / bandwidth, 3),
        }
    ]
    for count in (count for count in ALLOWED if count * batch <= MAX_VOCABULARIES * vocabulary):
        bits, offsets, ids = constraint(vocabulary, batch, count, bench.device)
        masked = bench.seconds(lambda index, b=bits: dense(hidden, HeadWeights(weights[index]), draws, *b), copies, 8)
        few = bench.seconds(
            lambda index, o=offsets, i=ids, n=count: sparse(hidden, HeadWeights(weights[index]), draws, o, i, n),
            copies,
            8,
        )
        lines.append(
            {
                **shared,
                "allowed": count,
                "apart_us": None,
                "dense_us": round(masked * 1e6, 2),
                "sparse_us": round(few * 1e6, 2),
                "speedup": round(masked / few, 2),
                "of_copy": round(count * batch * width * bench.dtype.itemsize / few / bandwidth, 3),
            }
        )
    return lines


def constraint(
    vocabulary: int, batch: int, count: int, device: str
) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor, torch.Tensor]:
    """`count` random ids for each draw: as bits and lines, and as offsets and ids."""
    ids = torch.stack([torch.randperm(vocabulary)[:count].sort().values for _ in range(batch)])
    bools = torch.zeros(batch, -(-vocabulary // 32) * 32, dtype=torch.int64).scatter_(1, ids, 1)
    words = (bools.view(batch, -1, 32) << torch.arange(32)).sum(-1)
    bits = torch.where(words >= 1 << 31, words - (1 << 32), words).int().to(device)
    offsets = torch.arange(batch + 1, dtype=torch.int32, device=device) * count
    return (bits, torch.arange(batch, dtype=torch.int32, device=device)), offsets, ids.flatten().int().to(device)

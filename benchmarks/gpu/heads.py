"""How fast the heads are: dense and sparse kernels over how many ids are allowed, against product and draw apart.

Times are those of `kernels.seconds`: calls go round copies of the weights that together are several times the size of
the L2. Bytes are those of the weights that are read, once, though each draw has a list of its own. The crossover is the
fewest allowed ids, of those tried, with which the dense kernel under a mask is faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

from benchmarks.gpu.kernels import BF16, copy_bandwidth, named, seconds
from benchmarks.gpu.record import Record
from qpdsl.executor.kernels.data.token_draws import HeadWeights, TokenDraws
from qpdsl.executor.kernels.triton.heads.dense_head import dense
from qpdsl.executor.kernels.triton.heads.sample import sample
from qpdsl.executor.kernels.triton.heads.sparse_head import sparse

# Ids and width: of an 8B model (Llama 3), of Gemma 3 270M and of SmolLM2 135M.
HEADS = ((128_256, 4096), (262_144, 640), (49_152, 576))
BATCHES = (1, 8, 64)
ALLOWED = (1, 16, 64, 256, 1024, 4096, 16_384, 65_536)
# Where the lists of all draws have more ids than so many vocabularies, nobody doubts which head is faster.
MOST_VOCABULARIES = 16


def run(record: Record) -> None:
    """Each head at each batch: a line of `dense`, and one of `sparse` for each number of allowed ids."""
    bandwidth = copy_bandwidth()
    record.note(copy_gb_per_s=round(bandwidth / 1e9, 1))
    for vocabulary, width in HEADS:
        for batch in BATCHES:
            record.case(
                "heads",
                named(vocabulary, width, batch),
                lambda v=vocabulary, w=width, b=batch: head_case(v, w, b, bandwidth),
            )


def head_case(vocabulary: int, width: int, batch: int, bandwidth: float) -> list[dict[str, Any]]:
    """A line without a mask, then one for each number of allowed ids; every draw allows others."""
    size = vocabulary * width * BF16.itemsize
    copies = max(1, min(16, 4 * torch.cuda.get_device_properties(0).L2_cache_size // size + 1))
    weights = torch.randn(copies, vocabulary, width, device="cuda", dtype=BF16)
    hidden = torch.randn(batch, width, device="cuda", dtype=BF16)
    numbers = torch.arange(batch, device="cuda")
    draws = TokenDraws(numbers.int(), torch.ones(batch, device="cuda"), numbers * 7919, numbers)

    def product_and_draw(index: int) -> object:
        return sample(linear(hidden, weights[index]).float(), draws.temperatures, draws.keys, draws.positions)

    apart = seconds(product_and_draw, copies, 8)
    free = seconds(lambda index: dense(hidden, HeadWeights(weights[index]), draws), copies, 8)
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
    for count in (count for count in ALLOWED if count * batch <= MOST_VOCABULARIES * vocabulary):
        bits, offsets, ids = constraint(vocabulary, batch, count)
        masked = seconds(lambda index, b=bits: dense(hidden, HeadWeights(weights[index]), draws, *b), copies, 8)
        few = seconds(
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
                "of_copy": round(count * batch * width * BF16.itemsize / few / bandwidth, 3),
            }
        )
    return lines


def constraint(
    vocabulary: int, batch: int, count: int
) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor, torch.Tensor]:
    """`count` random ids for each draw: as bits and lines, and as offsets and ids."""
    ids = torch.stack([torch.randperm(vocabulary)[:count].sort().values for _ in range(batch)])
    bools = torch.zeros(batch, -(-vocabulary // 32) * 32, dtype=torch.int64).scatter_(1, ids, 1)
    words = (bools.view(batch, -1, 32) << torch.arange(32)).sum(-1)
    bits = torch.where(words >= 1 << 31, words - (1 << 32), words).int().cuda()
    offsets = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * count
    return (bits, torch.arange(batch, dtype=torch.int32, device="cuda")), offsets, ids.flatten().int().cuda()

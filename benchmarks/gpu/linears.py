"""Whether the library sums every row of a product alike, whichever place it has and whatever is beside it.

Deterministic steps have one shape for all batches, and trust that a kernel of cuBLAS treats rows of one shape alike. It
promises that results are the same from run to run, not that they do not depend on the row: kernels that split the
inputs (split-K, Stream-K) may sum the tiles of some rows otherwise. So each product of the real models is tried at the
rows of a deterministic step, bit by bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.estimate.shapes import SHAPES, Shape
from benchmarks.gpu.record import Record
from qpdsl.executor.engine.step.backends import FIXED_ROWS, sum_in_float32

_DRY = Shape(64, 96, 2, 4, 2, 1000, tied=True)


def run(record: Record, bench: Bench) -> None:
    """A line for each product of each model, into the table `products`."""
    for name, shape in {"tiny": _DRY}.items() if bench.dry else reversed(SHAPES.items()):
        for product, (outputs, inputs) in products(shape).items():
            record.case(
                "products",
                f"{name} {product}",
                lambda n=name, p=product, o=outputs, i=inputs: product_case(n, p, o, i, bench),
            )


def products(shape: Shape) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of a model's products: as fused layers have them, and as modules do."""
    width = shape.kv_heads * shape.dim
    apart = {"queries": (shape.heads * shape.dim, shape.hidden), "keys": (width, shape.hidden)}
    return shape.products | apart | {"gate": (shape.intermediate, shape.hidden)}


def product_case(
    model: str, product: str, outputs: int, inputs: int, bench: Bench, rows: int = FIXED_ROWS
) -> dict[str, Any]:
    """How many rows get other bits in another place, beside other rows, or in another run.

    As deterministic engines have it, and where cuBLAS may split sums, as others do.
    """
    differing = []
    for whole in (True, False):
        sum_in_float32(whole=whole)
        differing.append(rows_that_differ(outputs, inputs, bench, rows))
    return {
        "model": model,
        "product": product,
        "outputs": outputs,
        "inputs": inputs,
        "rows": rows,
        "rows_that_differ": differing[0],
        "where_sums_are_split": differing[1],
    }


def rows_that_differ(outputs: int, inputs: int, bench: Bench, rows: int) -> int:
    """Of a product of random numbers."""
    like: dict[str, Any] = {"device": bench.device, "dtype": bench.dtype}
    weight = torch.randn(outputs, inputs, **like) / inputs**0.5
    states, others = torch.randn(rows, inputs, **like), torch.randn(rows, inputs, **like)
    wanted = linear(states, weight)
    differ = (linear(states, weight) != wanted).any(1)
    order = torch.randperm(rows, device=bench.device)
    differ |= (linear(states[order], weight)[order.argsort()] != wanted).any(1)
    for kept in (0, 1, rows // 2, rows - 1):
        mixed = others.clone()
        mixed[kept] = states[kept]
        differ[kept] |= (linear(mixed, weight)[kept] != wanted[kept]).any()
    # One row in every place.
    everywhere = linear(states[:1].expand(rows, -1).contiguous(), weight)
    differ |= (everywhere != everywhere[0]).any(1)
    return int(differ.sum())

"""The products of a step alone, by rows and type of weights, beside torch's own.

    python -m benchmarks.engine.products [--threads 1] [--layers 30] [--rows 1 4 6 8 12 16 64 256] [--seconds 0.8]

The layers have SmolLM2-135M's four products each and weights of their own, so that a pass reads 424 MB in float32, as a
step does. torch computes the same with float32 weights. Both take turns at each number of rows, a pass at a time; the
fastest pass counts. In bfloat16 inputs are rounded where the processor multiplies such pairs, as in `--dtype bfloat16`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.common.folders import RESULTS
from benchmarks.common.results import machine_line, write
from qpdsl.executor.kernels.data.weights import FloatWeight
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.kernels.llvm.panels import PanelWeights
from qpdsl.executor.kernels.llvm.product import Product

# Outputs and inputs.
_SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
_DTYPES = (torch.float32, torch.bfloat16)
Pass = Callable[[list[torch.Tensor]], None]


def fastest(passes: dict[str, Pass], rows: int, seconds: float) -> dict[str, float]:
    """The seconds of the fastest pass of each, which take turns for so long; three turns at least."""
    inputs = [torch.randn(rows, shape[1]) for shape in _SHAPES]
    best: dict[str, float] = dict.fromkeys(passes, float("inf"))
    begin, turns = time.perf_counter(), 0
    while turns < 3 or time.perf_counter() - begin < seconds:
        for name, run in passes.items():
            start = time.perf_counter()
            run(inputs)
            best[name] = min(best[name], time.perf_counter() - start)
        turns += 1
    return best


def ours(weights: list[list[torch.Tensor]], dtype: torch.dtype) -> Pass:
    width = vector_width()
    layers = [
        [Product(PanelWeights(FloatWeight(own.to(dtype)), width), rounds=True) for own in layer] for layer in weights
    ]

    def run(inputs: list[torch.Tensor]) -> None:
        for layer in layers:
            for product, rows in zip(layer, inputs, strict=True):
                product(rows)

    return run


def torchs(weights: list[list[torch.Tensor]]) -> Pass:
    def run(inputs: list[torch.Tensor]) -> None:
        for layer in weights:
            for own, rows in zip(layer, inputs, strict=True):
                torch.nn.functional.linear(rows, own)

    return run


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--layers", type=int, default=30)
    options.add_argument("--rows", nargs="+", type=int, default=[1, 4, 6, 8, 12, 16, 64, 256])
    options.add_argument("--seconds", type=float, default=0.8, help="for each number of rows")
    options.add_argument("--output", type=Path, default=RESULTS)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    weights = [[torch.randn(shape) for shape in _SHAPES] for _ in range(arguments.layers)]
    passes = {f"qpdsl {str(dtype).removeprefix('torch.')}": ours(weights, dtype) for dtype in _DTYPES}
    passes["torch float32"] = torchs(weights)
    work = 2 * arguments.layers * sum(outputs * inputs for outputs, inputs in _SHAPES)
    cases = [(rows, fastest(passes, rows, arguments.seconds)) for rows in arguments.rows]
    lines = [
        f"# Products of a step, {arguments.threads} thread(s)",
        "",
        "Milliseconds of a pass over all layers, thousand million operations a second, and times torch's float32.",
        "",
        f"| rows | {' | '.join(passes)} |",
        f"|---:|{'---:|' * len(passes)}",
    ]
    for rows, found in cases:
        cells = [
            f"{1e3 * own:.1f} ms, {rows * work / own / 1e9:.0f}, {found['torch float32'] / own:.2f}"
            for own in found.values()
        ]
        lines.append(f"| {rows} | {' | '.join(cells)} |")
    record = {
        "threads": arguments.threads,
        "layers": arguments.layers,
        "cases": [{"rows": rows, "seconds": found} for rows, found in cases],
    }
    write(arguments.output, "products", "\n".join([*lines, "", machine_line(), ""]), record)


if __name__ == "__main__":
    main()

"""What the host does in a decode step: scheduling, laying out, taking tokens. Processor time, anywhere.

    python -m benchmarks.gpu.host_time [--profile]

Layers and head are left out: they would run on the device. What is launched and copied there is not counted either, so
a step takes somewhat more. Sequences share nothing; the least of three medians counts, as other work only adds.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.common.shapes import random_prompts
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step.sampler import SampledTokens
from qpdsl.executor.kernels.packed import Sizes
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams

# Sequences, and the tokens of their prompts.
CASES = ((1, 512), (64, 512), (64, 4096), (256, 512))
_WIDTH, _VOCABULARY = 64, 1000
_STEPS, _WARMUP, _REPEATS = 40, 8, 3


class _NoGraphs:
    """Takes a step's numbers, and computes nothing."""

    def run(self, sizes: Sizes, fill: Callable[[torch.Tensor], None]) -> torch.Tensor:
        fill(torch.empty(sum(sizes.room), dtype=torch.int32))
        return torch.zeros(sizes.wanted or sizes.tokens, _WIDTH)

    def close(self) -> None:
        pass


def model() -> PagedModel:
    config = LlamaConfig(
        hidden_size=_WIDTH,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=_VOCABULARY,
        max_position_embeddings=16_384,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return PagedModel(AutoModelForCausalLM.from_config(config).eval(), kernels=True)


def engine_of(paged: PagedModel, rows: int, context: int) -> PagedEngine:
    """An engine in which `rows` sequences decode, that computes nothing."""
    total = _STEPS + _WARMUP + 8
    pages = rows * ((context + total) // paged.layout.page_size + 2) + 8
    engine = PagedEngine(EngineConfig(max_sequences=rows), kv_bytes=int(1.1 * pages * paged.layout.page_bytes))
    engine.add("m", paged)
    backend: Any = engine.runner("m").backend
    backend.graphs = _NoGraphs()
    eager = type(backend)._eager

    def without_layers(step: Any, exits: Any) -> Any:
        forward, paged.forward = paged.forward, _zeros  # type: ignore[method-assign]
        try:
            return eager(backend, step, exits)
        finally:
            paged.forward = forward  # type: ignore[method-assign]

    backend._eager = without_layers
    head = backend.readout._head
    planned = head.planned

    def without_kernels(draws: Any, parcel: Any) -> Any:
        planned(draws, parcel)
        count = len(draws.rows)
        drawn = SampledTokens(torch.full((count,), 5), torch.full((count,), -1.0), torch.zeros(count, dtype=torch.bool))
        return lambda hidden: drawn

    head.planned = without_kernels
    for index, prompt in enumerate(random_prompts(rows, context, _VOCABULARY)):
        engine.submit("m", GenerateRequest(prompt, (index,), SamplingParams(1.0), total))
    scheduler = engine.runner("m").scheduler
    while any(sequence.drawn == 0 for sequence in (*scheduler.running, *scheduler.waiting)):
        engine.step()
    return engine


def _zeros(batch: Any, cache: Any, exits: Any = ()) -> Any:
    return torch.zeros(batch.sizes.wanted or batch.sizes.tokens, _WIDTH), {}


def seconds(paged: PagedModel, rows: int, context: int) -> float:
    """Processor seconds of a step."""
    found = []
    for _ in range(_REPEATS):
        engine = engine_of(paged, rows, context)
        times = []
        for _ in range(_WARMUP + _STEPS):
            start = time.process_time()
            engine.step()
            times.append(time.process_time() - start)
        found.append(statistics.median(times[_WARMUP:]))
        engine.close()
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="processor time of the host in a decode step")
    parser.add_argument("--profile", action="store_true", help="what takes the time at 64 rows")
    options = parser.parse_args()
    torch.set_num_threads(1)
    paged = model()
    if options.profile:
        engine = engine_of(paged, 64, 512)
        with cProfile.Profile() as profile:
            for _ in range(_STEPS):
                engine.step()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    for rows, context in CASES:
        print(f"{rows:4} × {context:5}: {seconds(paged, rows, context) * 1e3:.3f} ms a step", flush=True)


if __name__ == "__main__":
    main()

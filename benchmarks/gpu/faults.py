"""What was once wrong and only a GPU can show: memory of the first of two models, a capture that fails, top-p's memory.

The engine's checks come first (`engine_checks.py`). Each line has its name, whether it holds, and what went wrong.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.gpu import engine_checks
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.engine import model_of
from benchmarks.gpu.engine_checks import check, engine, model, requests, serve, tokens
from benchmarks.gpu.record import Record
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams

# What the allocator may hold beside weights and pages once both models are there.
_SPARE = 2 << 30


def run(record: Record, bench: Bench) -> None:
    """All checks of the engine, into the table `checks`."""
    check(record, "two models: the first memory is gone before the second is taken", lambda: two_models(bench))
    check(record, "top-p for 128 rows of 128k ids beside a full cache", lambda: filtered(bench))
    if not bench.dry:
        check(record, "a capture that fails leaves the process as it was", failed_capture)
    engine_checks.run(record, bench)


def two_models(bench: Bench) -> str | None:
    """Each takes the same budget; with both buffers there at once, a budget over half of free memory would run out."""
    first, second = model(bench.device), model(bench.device)
    budget: int | str = 40 << 20 if bench.dry else "60%"
    made = PagedEngine(EngineConfig(), kv_bytes=budget)
    made.add("a", first)
    assert made.models.arena is not None
    before = weakref.ref(made.models.arena.buffer)
    gc.disable()
    try:
        made.add("b", second)
    finally:
        gc.enable()
    if before() is not None:
        return "the first buffer is still there"
    if not bench.dry and (held := torch.cuda.memory_allocated()) > made.kv_bytes + _SPARE:
        return f"{held >> 20} MiB are held for a budget of {made.kv_bytes >> 20}"
    return None


def filtered(bench: Bench) -> str | None:
    """The budget by default is what is left after a trial of the largest step, filters included."""
    with model_of("tiny" if bench.dry else "1B", bench) as made:
        paged = PagedModel(made, kernels=True)
        served = PagedEngine(EngineConfig(), kv_bytes=40 << 20 if bench.dry else None)
        served.add("m", paged)
        rows = 4 if bench.dry else 128
        sampling = SamplingParams(1.0, top_p=0.9)
        tickets = [served.submit("m", GenerateRequest((7, 8, 9), (row,), sampling, 3)) for row in range(rows)]
        while served.has_work:
            served.step()
        short = [ticket for ticket in tickets if len(ticket.result().samples[0].tokens) != 3]
    return f"{len(short)} samples are short" if short else None


def failed_capture() -> str | None:
    """A forward that waits for the device cannot be captured. Steps go on eagerly, in the stream that was current."""
    wanted = tokens(serve(engine(model("cuda")), requests()))
    paged = model("cuda")
    forward = paged.forward

    def waiting(batch: Any, cache: Any, exits: Sequence[int] = ()) -> Any:
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return forward(batch, cache, exits)

    paged.forward = waiting  # type: ignore[method-assign]
    logging.disable(logging.WARNING)
    try:
        served = engine(paged)
        drawn = tokens(serve(served, requests()))
    finally:
        logging.disable(logging.NOTSET)
    graphs = served.runner("m").backend.graphs  # type: ignore[attr-defined]
    if graphs is None or not graphs.refused:
        return "no capture failed"
    if torch.cuda.current_stream() != torch.cuda.default_stream():
        return "steps go on in the stream of the capture"
    if drawn != wanted:
        return "other tokens after it"
    # What is allocated now must come from the ordinary pool, and other graphs be captured as ever.
    torch.zeros(1 << 24, device="cuda")
    torch.cuda.synchronize()
    return engine_checks.captures()

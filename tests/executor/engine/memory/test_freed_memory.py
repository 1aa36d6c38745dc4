"""The KV of the models that were there is given back before that for one more is asked for: both may not fit."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from qpdsl.executor.engine.memory import kv_cache
from qpdsl.executor.engine.memory.kv_cache import KVCache, KVLayout
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step import backends
from qpdsl.executor.engine.step.backends import KernelBackend
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.request import GenerateRequest, ReadRequest, SamplingParams
from qpdsl.grammar.words import KV_TYPES, KVType
from tests.support.executor.models import random_model

KEYS = tuple(range(3))
Buffer = weakref.ref[np.ndarray[Any, np.dtype[np.uint8]]]


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Buffer]]:
    """The buffers that arenas were given; of the earlier ones none is there when the next is asked for."""
    made: list[Buffer] = []

    def zeros(size: int, device: str) -> torch.Tensor:
        assert all(buffer() is None for buffer in made), "an old buffer is still there"
        memory = np.zeros(size, dtype=np.uint8)
        made.append(weakref.ref(memory))
        return torch.from_numpy(memory)

    monkeypatch.setattr(kv_cache, "_zeros", zeros)
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)
    gc.collect()
    gc.disable()
    yield made
    gc.enable()


class Graph:
    """Does its work again, into the same result."""

    bytes = 0

    def __init__(self, work: Callable[[], torch.Tensor], result: torch.Tensor) -> None:
        self.work = work
        self.result = result

    def replay(self) -> None:
        self.result.copy_(self.work())


def record(work: Callable[[], torch.Tensor]) -> tuple[Graph, torch.Tensor]:
    result = work().clone()
    return Graph(work, result), result


@pytest.mark.parametrize("kernels", [False, True])
def test_a_buffer_is_gone_before_the_next_is_made(
    kernels: bool,
    buffers: list[Buffer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever still has tickets, and without the help of the garbage collector."""
    if kernels:
        monkeypatch.setattr(
            backends, "kernel_backend", lambda model, cache, rows, graphs: KernelBackend(model, cache, rows, record)
        )
    engine = PagedEngine(EngineConfig(max_sequences=8), kv_bytes="4MiB")
    models = {name: PagedModel(random_model("llama", seed), kernels=kernels) for seed, name in enumerate("abc")}
    engine.add("a", models["a"])
    engine.add("b", models["b"])
    draft = Drafting("model", "b", 2)
    tickets = [
        engine.submit("a", GenerateRequest((1, 2, 3), KEYS, SamplingParams(), 9)),
        engine.submit("a", GenerateRequest((4, 5), KEYS, SamplingParams(), 6, draft=draft)),
        engine.submit("b", ReadRequest((1, 2, 3, 4), (1, 3), (5, 6))),
    ]
    while engine.has_work:
        engine.step()
    engine.add("c", models["c"])
    assert len(buffers) == 3 and all(ticket.done for ticket in tickets)
    ticket = engine.submit("c", GenerateRequest((1, 2), (0,), SamplingParams(), 2))
    while engine.has_work:
        engine.step()
    assert len(ticket.result().samples[0].tokens) == 2


def test_a_trial_of_memory_leaves_none_behind(
    buffers: list[Buffer],
) -> None:
    engine = PagedEngine(EngineConfig(max_sequences=4, token_budget=32), kv_bytes="4MiB")
    engine._try_largest_steps([PagedModel(random_model("llama"), kernels=kernels) for kernels in (False, True)])
    assert len(buffers) == 2 and buffers[-1]() is None


@pytest.mark.parametrize("kv_type", [None, *KV_TYPES])
def test_a_closed_cache_has_no_rows(kv_type: KVType | None) -> None:
    layout = KVLayout.equal(2, 16, 2, 32, torch.float32, kv_type)
    memory = torch.zeros(4 * layout.page_bytes, dtype=torch.uint8)
    cache = KVCache(memory, layout, 0)
    assert len(cache.rows.data) == 8
    cache.close()
    assert len(cache.rows.data) == 0

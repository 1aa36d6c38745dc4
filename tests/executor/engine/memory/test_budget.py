"""The memory budget: amounts as people write them, and what is taken where they say nothing."""

from __future__ import annotations

import itertools
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qpdsl.executor.engine.batch.kernel_batch import KernelBatch
from qpdsl.executor.engine.memory import budget
from qpdsl.executor.engine.memory.budget import kv_bytes, main_memory, parse
from qpdsl.executor.engine.memory.kv_cache import KVLayout, slab_bytes
from qpdsl.executor.engine.model.heads import ValueHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step.draws import Draw, Masks
from qpdsl.executor.engine.step.planned_reads import PendingRead
from qpdsl.executor.engine.step.readout import Readout
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from tests.support.executor.models import paged, random_model


@pytest.mark.parametrize(
    ("amount", "expected"),
    [(7, 7), ("7", 7), ("1.5 KiB", 1536), ("2GiB", 2 << 30), ("3gb", 3 * 10**9), ("25%", 250), ("100 %", 1000)],
)
def test_an_amount_is_bytes_or_a_share_of_the_device(amount: int | str, expected: int) -> None:
    assert parse(amount, lambda: 1000) == expected


@pytest.mark.parametrize("amount", ["", "much", "-5", "0%", "101%", "3 apples", "%"])
def test_what_is_no_amount_is_refused(amount: str) -> None:
    with pytest.raises(ValueError, match="is no amount of memory"):
        PagedEngine(kv_bytes=amount)


def test_a_cpu_gives_a_part_of_what_is_free() -> None:
    assert 0 < kv_bytes(None, "cpu", lambda: None) <= 2 << 30


def test_what_this_process_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least of what the machine has and of the limits: its own, its control group's and those above."""
    monkeypatch.setattr(budget, "_meminfo", lambda entry: 64 << 30)
    monkeypatch.setattr(resource, "getrlimit", lambda limit: (own, own))
    monkeypatch.setattr(budget, "_CONTROL_GROUPS", {"": (str(tmp_path), "memory.max")})
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    monkeypatch.setattr(budget, "_GROUPS", tmp_path / "groups")
    (tmp_path / "groups").write_text("3:cpu:/\n0::/outer/inner\n")
    own = resource.RLIM_INFINITY
    assert main_memory() == 64 << 30
    (tmp_path / "outer" / "inner" / "memory.max").write_text("max\n")
    (tmp_path / "outer" / "memory.max").write_text(f"{5 << 30}\n")
    assert main_memory() == 5 << 30
    assert 0 < kv_bytes(None, "cpu", lambda: None) <= (5 << 30) // 4
    own = 3 << 30
    assert main_memory() == 3 << 30


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_memory_that_the_system_does_not_give(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(*args: object, **named: object) -> None:
        raise error

    model = paged("llama")
    monkeypatch.setattr(np, "zeros", zeros)
    with pytest.raises(EngineError, match=r"the system does not give 8\.0 MiB of memory for the KV"):
        PagedEngine(kv_bytes="8MiB").add("llama", model)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_largest_step_has_as_many_tokens_as_any(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of draws and one of reads; where steps are of a fixed size, a prompt takes several until it is drawn."""
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)
    model = PagedModel(random_model("llama"), kernels=True)
    engine = PagedEngine(EngineConfig(max_sequences=40, token_budget=700, deterministic=deterministic), None, "8MiB")
    tokens: list[int] = []
    forward = model.forward

    def counted(batch: KernelBatch, *args: Any, **kwargs: Any) -> Any:
        tokens.append(batch.sizes.tokens)
        return forward(batch, *args, **kwargs)

    drawn: list[list[Draw]] = []
    masked: list[bool] = []
    rows_read: list[int] = []
    sample, read = Readout.sample, Readout.read

    def sampled(self: Readout, hidden: torch.Tensor, draws: list[Draw], masks: Masks | None) -> Any:
        drawn.append(draws)
        masked.append(masks is not None)
        return sample(self, hidden, draws, masks)

    def reads(self: Readout, readings: list[PendingRead]) -> Any:
        rows_read.append(sum(len(reading.hidden) for reading in readings))
        return read(self, readings)

    monkeypatch.setattr(model, "forward", counted)
    monkeypatch.setattr(Readout, "sample", sampled)
    monkeypatch.setattr(Readout, "read", reads)
    engine._try_largest_steps([model])
    # Three prompts that fill the model's 256 positions have as many tokens as a step, and a few more.
    assert max(tokens) == max(rows_read) == (128 if deterministic else 700) and sum(rows_read) == 3 * 255
    # Everything for which logits of all ids are made, and copies of them.
    assert sum(map(len, drawn)) == 40 and all(masked)
    for draw in itertools.chain.from_iterable(drawn):
        params = draw.params
        assert draw.figures and draw.confidence == "entropy" and draw.allowed >= 0
        assert None not in (params.top_k, params.top_p, params.min_p)


def test_a_step_that_does_not_fit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = paged("llama")

    def no_memory(*args: object, **named: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model, "forward", no_memory)
    engine = PagedEngine(EngineConfig(max_sequences=40, token_budget=1700), None, "8MiB")
    with pytest.raises(EngineError, match="no memory for a step of 1,700 tokens and 40 sequences"):
        engine._try_largest_steps([model])


def test_what_steps_take_is_left_free_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 GiB, 70 are free, a step takes 12 at its peak, graphs 5 and libraries 3; of a smaller one at least 1."""
    gib = 1 << 30
    total = 100
    taken = {"allocated": 10, "cached": 20, "peak": 0}

    def largest_step() -> None:
        assert taken["cached"] == 0, "what was freed before is given back first"
        taken.update(peak=22, cached=12)

    for name, value in {
        "empty_cache": lambda: taken.update(cached=0),
        "synchronize": lambda device: None,
        "reset_peak_memory_stats": lambda device: None,
        "memory_allocated": lambda device: taken["allocated"] * gib,
        "max_memory_allocated": lambda device: taken["peak"] * gib,
        "mem_get_info": lambda device: ((total - 20 - taken["allocated"] - taken["cached"]) * gib, total * gib),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    assert kv_bytes(None, "cuda:0", largest_step, beside=5 * gib) == (70 - 12 - 5 - 3) * gib
    total = 32
    assert kv_bytes(None, "cuda:0", lambda: taken.update(peak=10), beside=0) == (32 - 20 - 10 - 1) * gib


def test_a_reward_model_has_a_largest_step_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)
    head = ValueHead([(torch.randn(1, 48), None)])
    model = PagedModel(random_model("llama").model, kernels=True, head=head)
    PagedEngine(EngineConfig(token_budget=64), None, "8MiB")._try_largest_steps([model])


def test_a_model_that_does_not_fit_is_refused_and_the_others_stay() -> None:
    model = paged("llama")
    engine = PagedEngine(kv_bytes=2 * model.layout.page_bytes)
    engine.add("m", model)
    with pytest.raises(EngineError, match="too small for other"):
        engine.add("other", model)
    ticket = engine.submit("m", GenerateRequest((1, 2), (0,), SamplingParams(), 3))
    while engine.has_work:
        engine.step()
    assert len(ticket.result().samples[0].tokens) == 3


@pytest.mark.parametrize("budget", [1 << 20, 1 << 24, 1 << 31])
@pytest.mark.parametrize("shapes", [((4, 2, 32), (7, 2, 32)), ((3, 5, 7), (2, 3, 11)), ((24, 2, 64), (28, 8, 128))])
def test_slabs_suit_every_model(budget: int, shapes: tuple[tuple[int, int, int], ...]) -> None:
    layouts = [KVLayout.equal(layers, 16, heads, width, torch.float32) for layers, heads, width in shapes]
    size = slab_bytes(layouts, budget)
    for layout in layouts:
        first = size // layout.page_bytes
        assert first >= 1
        if budget >= 1 << 24 and budget > 400 * layout.page_bytes:
            lost = 1 - first * layout.page_bytes / size
            assert lost < 0.1 and size < budget / 10

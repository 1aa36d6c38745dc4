"""Log-probabilities of given tokens are transformers' own, whatever the cache, the chunks and the memory."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from qpdsl.executor.engine.batch.staging import Staging
from qpdsl.executor.engine.model.heads import LogitHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step import sampler
from qpdsl.executor.engine.step.adjustments import adjustment_of
from qpdsl.executor.engine.step.device_head import DeviceHead
from qpdsl.executor.engine.step.draws import Draw, Masks
from qpdsl.executor.engine.step.planned_reads import PendingRead
from qpdsl.executor.engine.step.readout import Readout
from qpdsl.executor.engine.step.sampler import DeviceSampler, Sampler
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.requests.drawing import LogitContrast, LogitProcessors
from qpdsl.executor.requests.request import (
    GenerateRequest,
    LogitsRequest,
    LogProbRequest,
    ReadRequest,
    SamplingParams,
    TreeRequest,
)
from tests.support.executor.fake_device import fake_device
from tests.support.executor.models import VOCABULARY, engine_of, paged, random_model


def request(length: int, targets: int, end: tuple[int, ...] = ()) -> LogProbRequest:
    rng = random.Random(length)
    tokens = [rng.randrange(1, VOCABULARY) for _ in range(length + targets)]
    return LogProbRequest(tuple(tokens[:length]), tuple(tokens[length:]), end)


def served(engine: PagedEngine, *requests: LogProbRequest | TreeRequest) -> list[tuple[float, ...]]:
    tickets = [engine.submit("m", request) for request in requests]
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    return [ticket.result().logprobs for ticket in tickets]


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_neox"])
def test_they_are_those_of_a_straight_forward(name: str) -> None:
    engine = PagedEngine(EngineConfig(token_budget=24))
    engine.add("m", paged(name))
    requests = [request(1, 3), request(40, 1), request(17, 90), request(30, 5, (3, 4)), request(30, 0, (7,))]
    for item, logprobs in zip(requests, served(engine, *requests), strict=True):
        tokens = item.prompt + item.targets
        with torch.inference_mode():
            expected = random_model(name)(torch.tensor([tokens])).logits[0].double().log_softmax(-1)
        first = len(item.prompt) - 1
        expected_logprobs = [expected[first + at, target] for at, target in enumerate(item.targets)]
        if item.end:
            expected_logprobs.append(expected[-1, list(item.end)].logsumexp(0))
        assert logprobs == pytest.approx([float(value) for value in expected_logprobs], abs=1e-4)


def test_their_bits_do_not_hang_on_how_they_are_computed() -> None:
    requests = [request(length, 20, (2,)) for length in (5, 20, 33, 60)]
    straight = []
    for item in requests:
        engine = PagedEngine()
        engine.add("m", paged("llama"))
        straight += served(engine, item)
    for pages, config in (
        (400, EngineConfig()),
        (400, EngineConfig(token_budget=7)),
        (6, EngineConfig(token_budget=8)),
    ):
        reports: list[StepReport] = []
        engine = engine_of(paged("llama"), pages, config=config, on_step=reports.append)
        writer = engine.submit("m", GenerateRequest(tuple(range(1, 17)), (0,), SamplingParams(1.0), 60))
        assert served(engine, *requests) == straight
        assert served(engine, *requests[::-1]) == straight[::-1]
        assert writer.done
    assert reports[-1].preemptions > 0


def trees() -> list[TreeRequest]:
    """Branches that share beginnings, are one another's beginning, or come twice; with an end and without one."""
    rng = random.Random(5)

    def tokens(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(1, VOCABULARY) for _ in range(length))

    stem, shared = tokens(33), tokens(9)
    branches = (*((*shared, *tokens(length)) for length in (1, 4, 7)), shared[:5], shared, shared, tokens(30))
    return [
        TreeRequest(stem, branches, (2, 7)),
        TreeRequest(stem, branches),
        TreeRequest(stem[:16], ((5,), (6,), (5, 6), ()), (9,)),
        TreeRequest((3,), ((4,),)),
    ]


@pytest.mark.parametrize("native", [True, False])
def test_a_tree_reads_the_bits_of_its_branches_one_by_one(native: bool) -> None:
    alone = []
    for tree in trees():
        engine = PagedEngine()
        engine.add("m", paged("llama", native=native))
        singles = [LogProbRequest(tree.prompt, branch, tree.end, cached=False) for branch in tree.branches]
        alone.append(tuple(value for logprobs in served(engine, *singles) for value in logprobs))
    for pages, config in (
        (400, EngineConfig()),
        (400, EngineConfig(token_budget=7)),
        (6, EngineConfig(token_budget=8)),
    ):
        reports: list[StepReport] = []
        engine = engine_of(paged("llama", native=native), pages, config=config, on_step=reports.append)
        writer = engine.submit("m", GenerateRequest(tuple(range(1, 17)), (0,), SamplingParams(1.0), 60))
        assert served(engine, *trees()) == alone
        assert writer.done
        # What a tree leaves in the cache is its prompt.
        assert served(engine, *trees()[::-1]) == alone[::-1]
    assert reports[-1].preemptions > 0


def test_a_tree_without_branches_is_refused() -> None:
    with pytest.raises(ValueError, match="something that follows"):
        TreeRequest((1,), ())
    with pytest.raises(ValueError, match="something that follows"):
        TreeRequest((1,), ((2,), ()))


def masks_of(*allowed: list[int]) -> Masks:
    """A line for each list of ids."""
    bools = np.zeros((len(allowed), -(-VOCABULARY // 32) * 32), dtype=np.bool_)
    for line, ids in zip(bools, allowed, strict=True):
        line[ids] = True
    return Masks(np.packbits(bools, axis=1, bitorder="little").view(np.int32), bools.sum(axis=1), {})


def all_kinds() -> tuple[list[Draw], Masks]:
    """By the dense and the sparse head, masked and not, filtered, contrasted, and with all that is told of a draw."""
    plain, cut = SamplingParams(1.0), SamplingParams(0.8, 9, 0.9, 0.01)
    smaller = np.random.default_rng(3).normal(size=VOCABULARY).astype(np.float32)
    penalized = adjustment_of(GenerateRequest((3, 5), (1,), SamplingParams(processors=LogitProcessors(1.5)), 1), (7, 9))
    draws = [
        Draw(0, plain, 1, 0),
        Draw(2, cut, 2, 5),
        Draw(1, plain, 3, 1, allowed=0, sparse=True),
        Draw(1, cut, 4, 1, allowed=1),
        Draw(2, SamplingParams(0.0), 5, 1, allowed=1),
        Draw(0, plain, 6, 2, confidence="margin"),
        Draw(2, cut, 7, 2, allowed=1, confidence="entropy"),
        Draw(1, plain, 9, 0, contrast=LogitContrast(smaller, 0.05, 0.5)),
        Draw(1, cut, 10, 3, allowed=1, adjustment=penalized, contrast=LogitContrast(smaller[:90], 0.0, 2.0)),
        Draw(2, SamplingParams(0.0), 11, 0, allowed=0, contrast=LogitContrast(np.append(smaller, smaller), 0.5, 1.0)),
        Draw(0, SamplingParams(0.0, top_k=4), 8, 2, confidence="probability", figures=True),
    ]
    return draws, masks_of([5, 7], list(range(0, VOCABULARY, 2)))


def readings_of(generator: torch.Generator, width: int) -> list[PendingRead]:
    """Log-probabilities, some of the last positions alone, trees, logits of few ids, two the same, and of all ids."""
    asked = [
        request(3, 4, (5, 6, 7)),
        ReadRequest((1, 2, 3), (0, 1, 2), (4, 9)),
        trees()[0],
        ReadRequest((1, 2), (1,), (7,)),
        request(20, 70, (2,)),
        ReadRequest((1,), (0,), (4, 9)),
        LogitsRequest((1, 2)),
        LogitsRequest((4, 2, 1), 2),
    ]
    counts = [(len(item.positions), 0) for item in asked]
    counts[0] = (2, 3)
    return [
        PendingRead(torch.randn(count, width, generator=generator), item, done)
        for item, (count, done) in zip(asked, counts, strict=True)
    ]


@pytest.mark.parametrize("kernels", [False, True], ids=["twins", "kernels"])
def test_one_copy_each_way_and_the_results_of_each_alone(kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels:
        pytest.importorskip("triton")
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)
    model = PagedModel(random_model("gemma2"), kernels=True)
    weights = model.head.weights if isinstance(model.head, LogitHead) else None
    assert weights is not None

    def readout(kernels: bool) -> Readout:
        staging = Staging("cpu")
        draw: Sampler = sampler.sample
        if kernels:
            from qpdsl.executor.kernels.triton.sample import sample

            draw = DeviceSampler(staging, sample)
        return Readout(model, staging, draw, head=DeviceHead(weights, staging, deterministic=True))

    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, weights.weight.shape[1], generator=generator)
    draws, masks = all_kinds()
    readings = readings_of(generator, hidden.shape[1])
    alone = readout(False)
    with torch.inference_mode():
        tokens = [alone.sample(hidden[draw.row][None], [draw._replace(row=0)], masks) for draw in draws]
        values = [alone.read([reading])[0] for reading in readings]
        with fake_device() as lane:
            monkeypatch.setattr(paged_attention, "_INTERPRETED", kernels)
            together = readout(kernels)
            pending = together.start(hidden, draws, masks, readings)
            assert (lane.copies, lane.waits) == (2, 0)
            hidden.fill_(float("nan"))
            results = pending.wait()
            assert (lane.copies, lane.waits) == (2, 1)
            assert pending.wait() is results and lane.waits == 1
            assert together.start(None, [], None, []).wait().values == [] and lane.copies == 2
    assert results.tokens.tokens == [one.tokens[0] for one in tokens]
    assert results.tokens.near_ties == [one.near_ties[0] for one in tokens]
    assert results.tokens.logprobs == pytest.approx([one.logprobs[0] for one in tokens], abs=1e-4)
    assert np.array(results.tokens.figures[-1]) == pytest.approx(np.array(tokens[-1].figures[0]), abs=1e-4)
    assert results.tokens.figures[:-1] == [None] * (len(draws) - 1)
    for draw, mine, one in zip(draws, results.tokens.confidences, tokens, strict=True):
        assert draw.confidence is None or mine == pytest.approx(one.confidences[0], abs=1e-4)
    assert [len(value) for value in results.values] == [len(reading.hidden) for reading in readings]
    for mine, theirs in zip(results.values, values, strict=True):
        assert np.array(mine) == pytest.approx(np.array(theirs), abs=1e-4)


def test_a_draw_that_asks_for_a_margin_changes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels tell no margins, so that draw looks at logits; its neighbours are drawn as they are alone."""
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)
    model = PagedModel(random_model("llama"), kernels=True)
    weights = model.head.weights if isinstance(model.head, LogitHead) else None
    assert weights is not None
    staging = Staging("cpu")
    readout = Readout(model, staging, sampler.sample, head=DeviceHead(weights, staging, deterministic=True))
    hidden = torch.randn(9, weights.weight.shape[1], generator=torch.Generator().manual_seed(2))
    draws = [Draw(row, SamplingParams(1.0), row, 3) for row in range(8)]
    asking = Draw(8, SamplingParams(1.0), 8, 3, confidence="margin")
    alone, beside = readout.sample(hidden, draws, None), readout.sample(hidden, [*draws, asking], None)
    assert (beside.tokens[:8], beside.logprobs[:8]) == (alone.tokens, alone.logprobs)
    assert 0 < beside.confidences[8] < 1 and np.isnan(beside.confidences[:8]).all()

"""Log-probabilities of given tokens are transformers' own, whatever the cache, the chunks and the memory."""

from __future__ import annotations

import random

import pytest
import torch

from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests.request import GenerateRequest, LogProbRequest, SamplingParams, TreeRequest
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

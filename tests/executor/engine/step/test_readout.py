"""Log-probabilities of given tokens are transformers' own, whatever the cache, the chunks and the memory."""

from __future__ import annotations

import random

import pytest
import torch

from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests.request import GenerateRequest, LogProbRequest, SamplingParams
from tests.support.executor.models import VOCABULARY, engine_of, paged, random_model


def request(length: int, targets: int, end: tuple[int, ...] = ()) -> LogProbRequest:
    rng = random.Random(length)
    tokens = [rng.randrange(1, VOCABULARY) for _ in range(length + targets)]
    return LogProbRequest(tuple(tokens[:length]), tuple(tokens[length:]), end)


def served(engine: PagedEngine, *requests: LogProbRequest) -> list[tuple[float, ...]]:
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

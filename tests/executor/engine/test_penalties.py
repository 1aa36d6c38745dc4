"""Penalties and biases are transformers' own, and whatever carries the steps out changes no token."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.requests.drawing import Drafting, LogitProcessors
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from tests.support.executor.models import VOCABULARY, engine_of, paged, random_model, served
from tests.support.executor.rule_mask import RuleMask

PROCESSORS = (
    LogitProcessors(repetition=1.7),
    LogitProcessors(bias=((3, 6.0), (40, 5.0), (77, -8.0))),
    LogitProcessors(presence=1.5, frequency=0.75),
    LogitProcessors(repetition=0.6, presence=-1.0, frequency=0.5, bias=((7, 4.0),)),
)
PROMPT = (5, 9, 40, 5, 77, 12)


class Counted(LogitsProcessor):
    """OpenAI's penalties of the tokens behind a prompt of so many."""

    def __init__(self, presence: float, frequency: float) -> None:
        self.presence, self.frequency = presence, frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for id, count in Counter(input_ids[0, len(PROMPT) :].tolist()).items():
            scores[0, id] -= self.frequency * count + self.presence
        return scores


@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize("processors", PROCESSORS)
def test_greedy_equals_generate(processors: LogitProcessors, name: str) -> None:
    options: dict[str, Any] = {"repetition_penalty": processors.repetition}
    if processors.bias:
        options["sequence_bias"] = [[[id], bias] for id, bias in processors.bias]
    own = LogitsProcessorList([Counted(processors.presence, processors.frequency)])
    expected = random_model(name).generate(
        torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False, eos_token_id=None, logits_processor=own, **options
    )
    engine = engine_of(paged(name))
    request = GenerateRequest(PROMPT, (0,), SamplingParams(0, processors=processors), 40)
    ((sample,),) = served(engine, (request,))
    assert sample.tokens == tuple(expected[0, len(PROMPT) :].tolist())
    # A sample that goes on counts what it has drawn before.
    rest = replace(request, prompt=PROMPT + sample.tokens[:15], drawn=15, max_tokens=25)
    assert served(engine, (rest,))[0][0].tokens == sample.tokens[15:]


@cache
def requests() -> tuple[GenerateRequest, ...]:
    """Fan-outs, masked and free, greedy, drawn and filtered, with processors and without."""
    rng = random.Random(2)
    samplings = [SamplingParams(0.0), SamplingParams(0.8), SamplingParams(1.3, top_k=12), SamplingParams(1.0)]
    batch = []
    for index in range(10):
        prompt = tuple(rng.randrange(1, VOCABULARY) for _ in range(rng.randint(1, 30)))
        keys = tuple(rng.getrandbits(64) for _ in range(1 + index % 3))
        processors = LogitProcessors() if index % 5 == 4 else PROCESSORS[index % 4]
        params = replace(samplings[index % 4], processors=processors)
        request = GenerateRequest(prompt, keys, params, rng.randint(10, 50), logprobs=index % 2 == 0)
        batch.append(replace(request, mask=RuleMask, jump=index % 2 == 0, sparse=True) if index % 3 == 0 else request)
    return tuple(batch)


def tokens(samples: list[tuple[Sample, ...]]) -> list[list[tuple[int, ...]]]:
    return [[sample.tokens for sample in own] for own in samples]


@cache
def plainly() -> list[list[tuple[int, ...]]]:
    alone = [replace(request, sparse=False, jump=False, logprobs=True) for request in requests()]
    return [tokens(served(engine_of(paged("llama", native=False)), (one,)))[0] for one in alone]


def test_the_compiled_and_screened_heads_draw_the_same() -> None:
    assert tokens(served(engine_of(paged("llama"), config=EngineConfig(token_budget=32)), requests())) == plainly()


@pytest.mark.parametrize(
    "drafting", [Drafting("ngram", length=5, fixed=True), Drafting("model", "s", 3, 2, fixed=True)]
)
def test_drafts_change_nothing(drafting: Drafting) -> None:
    engine = PagedEngine(None, None, 400 * paged("llama").layout.page_bytes)
    engine.add("m", paged("llama"))
    engine.add("s", paged("llama"))
    drafted = served(engine, tuple(replace(request, draft=drafting) for request in requests()))
    assert tokens(drafted) == plainly()
    assert sum(sample.steps.accepted for own in drafted for sample in own) > 0


def test_kernels_of_a_device_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)
    model = PagedModel(random_model("llama"), native=False, kernels=True)
    assert tokens(served(engine_of(model), requests())) == plainly()


@pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")
def test_a_deferred_exit_is_the_one_for_which_all_layers_run() -> None:
    def leaving(**how: Any) -> list[list[tuple[int, ...]]]:
        own = (replace(request, exit=EarlyExit(0.3, 1, **how)) for request in requests())
        return tokens(served(engine_of(model), tuple(own)))

    model = paged("llama", num_hidden_layers=4)
    assert leaving() == leaving(deferred=True) != tokens(served(engine_of(model), requests()))


def test_no_exit_is_certified_beside_penalties() -> None:
    request = replace(requests()[0], exit=EarlyExit(0.3, 1, certify=0.1))
    with pytest.raises(EngineError, match="no early exit is certified beside penalties"):
        engine_of(paged("llama")).submit("m", request)

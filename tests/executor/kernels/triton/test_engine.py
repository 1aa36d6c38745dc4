"""The engine on the kernels: the tokens of the CPU path and, with steps of a fixed size, the same bits in any batch."""

from __future__ import annotations

import random
from functools import cache

import pytest

pytest.importorskip("triton")

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.engine.step import backends
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from tests.support.executor.models import VOCABULARY, engine_of, random_model, served
from tests.support.executor.paged_case import DEVICE

SAMPLING = [SamplingParams(0.8), SamplingParams(1.0, top_p=0.8), SamplingParams(0.0), SamplingParams(1.3, top_k=9)]


# Every program that is interpreted takes its time: one for each head, of each token, in each layer.
FEW_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}


@cache
def requests() -> tuple[GenerateRequest, ...]:
    """Three prompts over one prefix that is long enough for a cascade, and one prompt without it."""
    rng = random.Random(3)
    stem = [rng.randrange(1, VOCABULARY) for _ in range(132)]
    prompts = [stem + [index + 1] * (index + 1) for index in range(3)] + [[5, 6, 7]]
    keys = ((0, 9), (1,), (2,), (3,))
    return tuple(GenerateRequest(tuple(prompts[i]), keys[i], SAMPLING[i], 3) for i in range(4))


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_tokens_are_those_of_the_cpu_path(name: str) -> None:
    wanted = served(engine_of(PagedModel(random_model(name, **FEW_HEADS), kernels=False)), requests())
    model = PagedModel(random_model(name, **FEW_HEADS).to(DEVICE), kernels=True)
    results = served(engine_of(model, config=EngineConfig(token_budget=200)), requests())
    for mine, theirs in zip(results, wanted, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert a.tokens == b.tokens and a.finish == b.finish
            assert a.logprob == pytest.approx(b.logprob, abs=1e-3)


@pytest.mark.usefixtures("row_by_row")
def test_fixed_steps_give_the_same_bits_in_any_batch_and_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "FIXED_ROWS", 8)
    model = PagedModel(random_model("llama", num_hidden_layers=1, **FEW_HEADS).to(DEVICE), kernels=True)
    rng = random.Random(4)
    prompts = [tuple(rng.randrange(1, VOCABULARY) for _ in range(length)) for length in (3, 13, 6)]
    batch = [GenerateRequest(prompt, (7, 8)[: i + 1], SAMPLING[i], 3) for i, prompt in enumerate(prompts)]
    config = EngineConfig(max_sequences=8, deterministic=True)
    together = served(engine_of(model, config=config), tuple(batch))
    alone = [served(engine_of(model, config=config), (request,))[0] for request in batch]
    # Log-probabilities, not tokens alone: a sum taken in another order shows there first.
    assert together == alone
    order = [2, 0, 1]
    shuffled = served(engine_of(model, config=config), tuple(batch[index] for index in order))
    assert shuffled == [alone[index] for index in order]

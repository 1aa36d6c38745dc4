"""Keys and values in eight and four bits: more in the same memory, close to the model, and no schedule changes them."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
import torch

from qpdsl.executor.engine.memory.kv_cache import KVLayout
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.kernels.paged_attention import unkept
from qpdsl.executor.requests.errors import UnsupportedModel
from qpdsl.executor.requests.request import GenerateRequest, ReadRequest, Sample, SamplingParams
from qpdsl.grammar.words import KV_TYPES, KVType
from tests.support.executor.models import VOCABULARY, engine_of, random_model, served

KINDS = KV_TYPES


@cache
def model_of(kv_type: KVType | None, name: str = "llama", native: bool = True) -> PagedModel:
    # Heads 16 wide, which suit every type.
    model = PagedModel(random_model(name, head_dim=16), kv_type=kv_type, native=native)
    assert model.native is native
    return model


@cache
def requests() -> tuple[GenerateRequest, ...]:
    rng = random.Random(5)
    stem = [rng.randrange(1, VOCABULARY) for _ in range(40)]
    batch = []
    for index in range(16):
        prompt = stem[: rng.choice([0, 16, 33, 40])] + [rng.randrange(1, VOCABULARY) for _ in range(rng.randint(1, 30))]
        batch.append(GenerateRequest(tuple(prompt), (index, index + 99), SamplingParams(0.9), rng.randint(1, 40)))
    return tuple(batch)


@cache
def alone(kv_type: KVType, name: str) -> list[tuple[Sample, ...]]:
    results = []
    for request in requests():
        samples: list[Sample] = []
        for key in request.keys:
            single = GenerateRequest(request.prompt, (key,), request.sampling, request.max_tokens)
            samples += served(engine_of(model_of(kv_type, name)), (single,))[0]
        results.append(tuple(samples))
    return results


@pytest.mark.parametrize(
    ("pages", "config"),
    [(400, EngineConfig()), (400, EngineConfig(token_budget=20)), (8, EngineConfig(token_budget=37))],
    ids=["batch", "chunked", "least-memory"],
)
@pytest.mark.parametrize("kv_type", KINDS)
def test_tokens_are_those_of_the_sample_alone(kv_type: KVType, pages: int, config: EngineConfig) -> None:
    reports: list[StepReport] = []
    engine = engine_of(model_of(kv_type), pages, config, reports.append)
    assert served(engine, requests()) == alone(kv_type, "llama")
    assert served(engine, requests()[::-1]) == alone(kv_type, "llama")[::-1]
    if pages < 100:
        assert reports[-1].preemptions > 0


@pytest.mark.parametrize("kv_type", ["int8", "int4"])
def test_it_works_where_the_models_own_modules_run(kv_type: KVType) -> None:
    engine = engine_of(model_of(kv_type, "gemma2"))
    assert served(engine, requests()) == alone(kv_type, "gemma2")


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("kv_type", "bound"), [("int8", 0.02), ("fp8", 0.15), ("int4", 0.15)])
def test_logits_are_close_to_the_models(kv_type: KVType, bound: float, native: bool) -> None:
    rng = random.Random(7)
    tokens = tuple(rng.randrange(1, VOCABULARY) for _ in range(90))
    read = ReadRequest(tokens, tuple(range(90)), tuple(range(VOCABULARY)))
    logits = []
    for kind in (None, kv_type):
        engine = PagedEngine()
        engine.add("m", model_of(kind, native=native))
        ticket = engine.submit("m", read)
        while engine.has_work:
            engine.step()
        logits.append(torch.tensor(ticket.result().logits))
    spread = logits[0].std()
    error = (logits[0] - logits[1]).abs()
    assert 0 < error.mean() / spread < bound


def test_a_token_takes_half_of_what_it_takes_in_bfloat16_and_less_with_values_in_four_bits() -> None:
    plain = KVLayout.equal(24, 16, 2, 128, torch.bfloat16)
    for kind, least, most in (("int8", 1.9, 2), ("fp8", 1.9, 2), ("int4", 2.4, 2.42)):
        assert least <= plain.token_bytes / replace(plain, kv_type=kind).token_bytes <= most


def test_heads_of_another_width_are_refused_four_bits() -> None:
    with pytest.raises(UnsupportedModel, match=r"12 wide.*take int8"):
        PagedModel(random_model("llama"), kv_type="int4")


def test_a_gpu_refuses_four_bits_and_int8_where_it_reads_fp8_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedModel, match="no kernels for int4 keys and values on a GPU; take fp8"):
        PagedModel(random_model("llama", head_dim=16), kv_type="int4", kernels=True)
    device = torch.device("cuda")
    for capability, refused in (((8, 0), False), ((8, 9), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, own=capability: own)
        assert (unkept("int8", device) is not None) == refused and unkept("fp8", device) is None

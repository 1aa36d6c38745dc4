"""Models whose layers keep states: same tokens under any schedule, and prefixes found as where all keep keys."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from qpdsl.executor.engine.memory.state_blocks import StateBlocks, spacing
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import (
    GenerateRequest,
    LogProbRequest,
    ReadRequest,
    Sample,
    SamplingParams,
    TreeRequest,
)
from tests.support.executor.mixed_texts import tiny_model
from tests.support.executor.models import paged, served

LINEAR = ["linear_attention", "full_attention"]
DELTA = {
    "num_hidden_layers": 2,
    "layer_types": LINEAR,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 16,
    "head_dim": 12,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "delta": ("qwen3_5_text", DELTA),
    "delta with experts": ("qwen3_next", {**DELTA, **EXPERTS}),
    "conv": ("lfm2", {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}),
    "scan alone": (
        "mamba2",
        {"num_hidden_layers": 2, "num_heads": 4, "head_dim": 24, "state_size": 8, "n_groups": 2, "chunk_size": 16},
    ),
}
MIB = 1 << 20


@cache
def model_of(kind: str, page_size: int = 16) -> PagedModel:
    name, changes = KINDS[kind]
    torch.manual_seed(0)
    return PagedModel(tiny_model(name, **changes), page_size)


def engine_of(model: PagedModel, kv_bytes: int = MIB, **config: int) -> PagedEngine:
    engine = PagedEngine(EngineConfig(**config), kv_bytes=kv_bytes)
    engine.add("m", model)
    return engine


def states_of(engine: PagedEngine) -> StateBlocks:
    states = engine.runner("m").scheduler.memory.states
    assert states is not None
    return states


@cache
def requests() -> tuple[GenerateRequest, ...]:
    """Samples with prompts that share prefixes of whole pages and of parts of them."""
    rng = random.Random(3)
    stem = [rng.randrange(1, 101) for _ in range(70)]
    batch = []
    for index in range(8):
        prompt = stem[: rng.choice([0, 16, 33, 64, 70])] + [rng.randrange(1, 101) for _ in range(rng.randint(1, 40))]
        sampling = SamplingParams((0.0, 0.8, 1.3)[index % 3])
        keys = (1000 + 2 * index, (1 << 63) + index)
        batch.append(GenerateRequest(tuple(prompt), keys, sampling, rng.randint(1, 24), logprobs=True))
    return tuple(batch)


@cache
def alone(kind: str) -> list[tuple[Sample, ...]]:
    """Each request with nothing beside it and nothing cached, whose prompt is computed whole."""
    engine = engine_of(model_of(kind))
    return [served(engine, (replace(request, cached=False),))[0] for request in requests()]


@pytest.mark.parametrize("kind", KINDS)
def test_the_likeliest_tokens_are_those_of_generate(kind: str) -> None:
    name, changes = KINDS[kind]
    own = tiny_model(name, **changes)
    greedy = [replace(request, sampling=SamplingParams(0.0)) for request in requests()[:4]]
    for request, (sample, _) in zip(greedy, served(engine_of(model_of(kind)), greedy), strict=True):
        begun = torch.tensor([request.prompt])
        # No id ends a sample here.
        whole = own.generate(begun, max_new_tokens=request.max_tokens, do_sample=False, eos_token_id=None)
        assert sample.tokens == tuple(whole[0, len(request.prompt) :].tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_the_same_in_any_chunks_and_batches(kind: str) -> None:
    for config in ({}, {"max_sequences": 3, "token_budget": 7}):
        assert served(engine_of(model_of(kind), **config), requests()) == alone(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_the_same_from_a_warm_cache_and_in_little_memory(kind: str) -> None:
    model = model_of(kind)
    assert model.states is not None
    engine = engine_of(model)
    served(engine, requests())
    assert served(engine, requests()[::-1]) == alone(kind)[::-1]
    reports: list[StepReport] = []
    # Room for the longest text, and for the states of few.
    room = 12 * model.layout.page_bytes + 4 * model.states.block_bytes
    engine = PagedEngine(EngineConfig(token_budget=37), reports.append, room)
    engine.add("m", model)
    assert served(engine, requests()) == alone(kind)
    assert reports[-1].preemptions > 0


def test_what_ends_leaves_no_blocks_but_those_of_the_tree() -> None:
    engine = engine_of(model_of("delta"), token_budget=20)
    states = states_of(engine)
    for _ in range(2):
        tickets = [engine.submit("m", request) for request in requests()[:6]]
        for _ in range(5):
            engine.step()
        tickets[0].cancel()
        # In mid-prompt.
        late = engine.submit("m", GenerateRequest(tuple(range(1, 90)), (1,), SamplingParams(1.0), 4))
        while engine.runner("m").scheduler.waiting:
            engine.step()
        late.cancel()
        while engine.has_work:
            engine.step()
            engine.check_integrity()
        assert states.pool.held == len(states.kept)
    uncached = GenerateRequest(tuple(range(1, 90)), (1, 2), SamplingParams(1.0), 40, cached=False)
    before = len(states.kept)
    served(engine, (uncached,))
    assert len(states.kept) == before
    while states.kept.evict():
        pass
    assert states.pool.held == 0
    while engine.runner("m").scheduler.memory.tree.evict():
        pass
    assert engine.models.arena is not None
    assert engine.models.arena.free == engine.models.arena.slabs - 1


def test_the_least_memory_that_an_error_names_is_enough() -> None:
    model = model_of("delta")
    assert model.states is not None
    with pytest.raises(EngineError, match=f"states of a sequence {model.states.block_bytes:,}, and") as found:
        engine_of(model, model.layout.page_bytes)
    least = int(str(found.value).split(" and ")[-1].split()[0].replace(",", ""))
    with pytest.raises(EngineError, match="too small"):
        engine_of(model, least - 1)
    request = GenerateRequest((1, 2, 3), (1,), SamplingParams(1.0), 4)
    assert served(engine_of(model, least), (request,)) == served(engine_of(model), (request,))


def cached(engine: PagedEngine, tokens: tuple[int, ...], samples: int = 1, length: int = 1) -> int:
    """How many tokens of a prompt are not computed again."""
    ticket = engine.submit("m", GenerateRequest(tokens, tuple(range(samples)), SamplingParams(1.0), length))
    while engine.has_work:
        engine.step()
    return ticket.cached


def test_texts_that_part_are_gone_on_from_where_they_parted() -> None:
    engine = engine_of(model_of("delta"))
    stem, rng = tuple(range(1, 51)), random.Random(0)
    others = [stem + tuple(rng.randrange(1, 101) for _ in range(40)) for _ in range(4)]
    assert cached(engine, others[0]) == 0
    # That the first two share 50 tokens was not known before, and then it was.
    assert cached(engine, others[1]) == 0
    assert cached(engine, others[2]) == 48
    assert cached(engine, others[0]) == 80
    # Of those that come together one computes what they share, even to an engine that knows nothing.
    engine = engine_of(model_of("delta"))
    tickets = [engine.submit("m", GenerateRequest(tokens, (1,), SamplingParams(1.0), 1)) for tokens in others]
    while engine.has_work:
        engine.step()
    assert [ticket.cached for ticket in tickets] == [0, 48, 48, 48]


def test_an_ended_text_goes_on_from_its_last_token() -> None:
    engine = engine_of(model_of("delta"))
    prompt = tuple(range(1, 38))
    ticket = engine.submit("m", GenerateRequest(prompt, (1,), SamplingParams(1.0), 20))
    while engine.has_work:
        engine.step()
    text = prompt + ticket.result().samples[0].tokens
    # The last token was drawn and not computed.
    assert cached(engine, (*text, 5)) == len(text) - 1 == 56
    # Where the end is another one, from the last end of a page.
    assert cached(engine, (*text[:-3], 100, 99, 98)) == 48


def test_the_places_are_whole_pages_by_the_share_of_states() -> None:
    assert spacing(1000, 10, 16) == 400 and spacing(1010, 10, 16) == 400
    assert spacing(8, 10, 16) == 16 and spacing(10**9, 10, 16) == 4096


def test_long_texts_keep_states_at_regular_places() -> None:
    model = model_of("delta")
    assert model.states is not None
    engine = engine_of(model, 4 * MIB)
    apart = spacing(model.states.block_bytes, model.layout.token_bytes, 16)
    assert states_of(engine).spacing == apart
    rng = random.Random(0)
    text = tuple(rng.randrange(1, 101) for _ in range(3 * apart + 40))
    cached(engine, text)
    # Nobody knew that others part from it there.
    assert cached(engine, (*text[: 2 * apart + 20], 100)) == 2 * apart


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_is_read_branch_by_branch(kind: str) -> None:
    engine = engine_of(model_of(kind))
    prompt, branches = tuple(range(1, 41)), ((5, 6, 7), (5, 6), (8,))
    ticket = engine.submit("m", TreeRequest(prompt, branches, (2,)))
    parts = [engine.submit("m", LogProbRequest(prompt, branch, (2,))) for branch in branches]
    while engine.has_work:
        engine.step()
    expected = tuple(value for part in parts for value in part.result().logprobs)
    assert ticket.result().logprobs == expected
    given_up = engine.submit("m", TreeRequest(prompt, branches, (2,)))
    given_up.cancel()
    assert not engine.has_work


def test_drafts_and_exits_are_refused() -> None:
    engine = engine_of(model_of("delta"))
    assert not {"drafts", "early_exit"} & engine.capabilities("m").features
    drafting = Drafting("ngram", length=4)
    with pytest.raises(EngineError, match="does not verify drafted tokens"):
        engine.submit("m", GenerateRequest((1, 2), (1,), SamplingParams(0.0), 4, draft=drafting))
    engine.add("large", paged("qwen3"))
    with pytest.raises(EngineError, match="cannot draft for large: its layers keep states"):
        engine.submit("large", GenerateRequest((1, 2), (1,), SamplingParams(0.0), 4, draft=Drafting("model", "m")))


def searched(model: PagedModel) -> tuple[int, int]:
    """A beam search by steps: tokens of prompts that were found, and all of them."""
    engine = engine_of(model, 8 * MIB)
    rng = random.Random(1)
    found = total = 0
    for problem in range(2):
        beams = [tuple(rng.randrange(1, 101) for _ in range(40))] * 4
        for step in range(4):
            tickets = []
            for number, beam in enumerate(beams):
                keys = tuple(1000 * problem + 100 * step + 10 * number + index for index in range(4))
                tickets.append(engine.submit("m", GenerateRequest(beam, keys, SamplingParams(1.0), 13 + 3 * step)))
            while engine.has_work:
                engine.step()
            found += sum(ticket.cached for ticket in tickets)
            total += sum(map(len, beams))
            texts = [
                beam + sample.tokens
                for beam, ticket in zip(beams, tickets, strict=True)
                for sample in ticket.result().samples
            ]
            reads = [engine.submit("m", ReadRequest(text, (len(text) - 1,), (3,))) for text in texts]
            while engine.has_work:
                engine.step()
            found += sum(read.cached for read in reads)
            total += sum(map(len, texts))
            beams = rng.sample(texts, 4)
    return found, total


def test_a_beam_search_finds_as_many_prefixes_as_where_all_layers_keep_keys() -> None:
    """At most a tenth fewer."""
    (found, total), (plain, same) = searched(model_of("delta")), searched(paged("qwen3"))
    assert total == same and plain > 0.8 * total
    assert found >= 0.9 * plain

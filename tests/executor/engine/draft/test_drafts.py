"""Drafts change how fast tokens come, and none of them: whatever drafts, in whatever company."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from transformers import LlamaConfig

from qpdsl.executor.engine.draft.eagle_head import EagleHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from tests.support.executor.models import CONFIGS, VOCABULARY, paged, random_model, served
from tests.support.executor.rule_mask import RuleMask

SAMPLING = [
    SamplingParams(0.0),
    SamplingParams(0.8),
    SamplingParams(1.3, top_k=12),
    SamplingParams(1.0, top_p=0.8),
]


class StopAt:
    """Ends a sample at its second token of an id that is divisible by 9."""

    def __init__(self) -> None:
        self._seen = 0

    def push(self, token: int) -> bool:
        self._seen += token % 9 == 0
        return self._seen == 2


@cache
def loaded() -> tuple[PagedModel, PagedModel]:
    return paged("llama"), paged("llama", num_hidden_layers=1)


@dataclass(frozen=True)
class Lens:
    """An exit head that moves hidden states at random, by so much."""

    layer: int
    weight: torch.Tensor
    bias: torch.Tensor

    @classmethod
    def moving(cls, layer: int, by: float, width: int) -> Lens:
        generator = torch.Generator().manual_seed(layer)
        return cls(layer, by * torch.randn(width, width, generator=generator), torch.zeros(width))


@cache
def random_head(embeds: bool = False) -> EagleHead:
    """One for "m", with random weights."""
    torch.manual_seed(2)
    return EagleHead(LlamaConfig.from_dict(CONFIGS["llama"].to_dict()), embeds=embeds)


def engine_with(
    pages: int = 400,
    config: EngineConfig | None = None,
    on_step: Callable[[StepReport], None] | None = None,
) -> PagedEngine:
    """An engine that serves a model as "m", with another one that can draft for it as "small"."""
    model, small = loaded()
    engine = PagedEngine(config, on_step, (pages + 1) * model.layout.page_bytes)
    engine.add("m", model)
    engine.add("small", small)
    engine.add_head("head", random_head())
    engine.add_exit_head("lens", Lens.moving(1, 0.05, model.head_inputs))
    return engine


@cache
def requests() -> tuple[GenerateRequest, ...]:
    """Fan-outs whose prompts share prefixes; every other one is masked, with or without jumps, and some stop early."""
    rng = random.Random(5)
    stem = [rng.randrange(1, VOCABULARY) for _ in range(40)]
    batch = []
    for index in range(8):
        prompt = stem[: rng.choice([0, 16, 33, 40])] + [rng.randrange(1, VOCABULARY) for _ in range(rng.randint(1, 30))]
        request = GenerateRequest(
            tuple(prompt),
            (index, (1 << 63) + index, 7 * index)[: 1 + index % 3],
            SAMPLING[index % 4],
            rng.randint(1, 70),
            eos=frozenset({3, 50}) if index % 5 == 1 else frozenset(),
        )
        if index % 2:
            request = replace(request, mask=RuleMask, jump=index % 4 == 1, sparse=index % 8 == 1)
        if index % 3 == 0:
            request = replace(request, watch=lambda number: StopAt())
        batch.append(request)
    return tuple(batch)


@cache
def undrafted() -> list[tuple[Sample, ...]]:
    return served(engine_with(), requests())


def drafted(drafting: Drafting) -> tuple[GenerateRequest, ...]:
    return tuple(replace(request, draft=drafting) for request in requests())


METHODS = {
    "ngram": Drafting("ngram", length=6, fixed=True),
    "ngram, paced": Drafting("ngram", length=6),
    "another model": Drafting("model", "small", length=4, fixed=True),
    "its first layers": Drafting("early_exit", length=4, fixed=True),
    "ngram, a tree": Drafting("ngram", length=3, branches=2, fixed=True),
    "another model, a tree": Drafting("model", "small", length=3, branches=2, fixed=True),
    "its first layers, a tree": Drafting("early_exit", length=2, branches=3, fixed=True),
    "an exit head": Drafting("early_exit", "lens", length=4, fixed=True),
    "an EAGLE head": Drafting("eagle", "head", length=4, fixed=True),
    "an EAGLE head, a tree": Drafting("eagle", "head", length=3, branches=2, fixed=True),
    "model, paced": Drafting("model", "small", length=4),
}


@pytest.mark.parametrize("drafting", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize(
    ("pages", "config"),
    [
        (400, EngineConfig()),
        (400, EngineConfig(token_budget=20, max_sequences=6)),
        (16, EngineConfig()),
    ],
    ids=["together", "chunked", "little-memory"],
)
def test_samples_are_those_without_drafts(drafting: Drafting, pages: int, config: EngineConfig) -> None:
    reports: list[StepReport] = []
    engine = engine_with(pages, config, reports.append)
    assert served(engine, drafted(drafting)) == undrafted()
    if drafting.method == "ngram":
        # Now what the first ones left can be looked up.
        assert served(engine, drafted(drafting)) == undrafted()
    if pages < 100:
        assert reports[-1].preemptions > 0


@pytest.mark.parametrize("drafting", METHODS.values(), ids=METHODS)
def test_a_cancelled_request_leaves_nothing_and_the_others_go_on(drafting: Drafting) -> None:
    engine = engine_with()
    batch = drafted(drafting)[:6]
    doomed = [engine.submit("m", replace(request, max_tokens=200)) for request in batch[:3]]
    tickets = [engine.submit("m", request) for request in batch]
    for _ in range(6):
        engine.step()
    for ticket in doomed:
        ticket.cancel()
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    assert [ticket.result().samples for ticket in tickets] == undrafted()[:6]


@pytest.mark.parametrize("kernels", [False, True], ids=["torch", "kernels"])
def test_other_stacks_draft_too_but_for_their_first_layers(kernels: bool) -> None:
    model = PagedModel(random_model("llama"), kernels=kernels, native=False)
    engine = PagedEngine(kv_bytes=800 * model.layout.page_bytes)
    engine.add("m", model)
    engine.add("small", PagedModel(random_model("llama", num_hidden_layers=1), kernels=kernels, native=False))
    engine.add_head("head", random_head())
    # Kernels are interpreted here, which takes long.
    batch = (replace(requests()[5], prompt=(1, 2), keys=(1,), max_tokens=4),) if kernels else requests()[:3]
    methods = [METHODS["another model, a tree"]] if kernels else METHODS.values()
    expected = [[sample.tokens for sample in samples] for samples in served(engine, batch)]
    for drafting in methods:
        if drafting.method != "early_exit":
            drafts = served(engine, tuple(replace(request, draft=drafting) for request in batch))
            assert [[sample.tokens for sample in samples] for samples in drafts] == expected
    with pytest.raises(EngineError, match="m cannot draft with its first layers"):
        engine.submit("m", replace(batch[0], draft=METHODS["its first layers"]))


def test_first_layers_draft_through_the_exit_head_and_up_to_its_layer() -> None:
    def accepted(head: str | None) -> list[int]:
        engine = engine_with()
        model = loaded()[0]
        engine.add_exit_head("none", Lens.moving(model.exit_layer, 0.0, model.head_inputs))
        engine.add_exit_head("much", Lens.moving(model.exit_layer, 2.0, model.head_inputs))
        samples = served(engine, drafted(Drafting("early_exit", head, length=4, fixed=True)))
        return [sample.steps.accepted for row in samples for sample in row]

    usual = accepted(None)
    assert accepted("none") == usual and sum(usual) > 0
    assert accepted("much") != usual
    with pytest.raises(EngineError, match="there is no such exit head"):
        accepted("nowhere")

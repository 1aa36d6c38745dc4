"""A model of the engine drafts for another, with the other's noise, in memory that nobody else needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.engine.served_models import DRAFTERS
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.planner.plan.decode_plan import DRAFTS
from tests.executor.engine.draft.test_drafts import engine_with, requests
from tests.support.executor.models import paged, served
from tests.support.executor.rule_mask import RuleMask

ITSELF = Drafting("model", "m", length=5, fixed=True)


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(0), SamplingParams(1), SamplingParams(1.3, top_k=12), SamplingParams(1, top_p=0.8)],
)
@pytest.mark.parametrize("masked", [False, True])
def test_a_model_that_drafts_for_itself_is_always_right(sampling: SamplingParams, masked: bool) -> None:
    request = GenerateRequest(
        tuple(range(1, 40)), (1, 2), sampling, 49, mask=RuleMask if masked else None, draft=ITSELF
    )
    (samples,) = served(engine_with(), (request,))
    for sample in samples:
        assert sample.steps.accepted == sample.steps.drafted >= 35


@pytest.mark.parametrize("sampling", [SamplingParams(0), SamplingParams(1), SamplingParams(1, top_p=0.8)])
def test_a_tree_of_the_model_itself_has_what_will_be_drawn(sampling: SamplingParams) -> None:
    drafting = Drafting("model", "m", length=3, branches=2, fixed=True)
    request = GenerateRequest(tuple(range(1, 40)), (1, 2), sampling, 49, draft=drafting)
    (samples,) = served(engine_with(), (request,))
    for sample in samples:
        # One token from the prompt, and then three right ones and one more a round.
        assert sample.steps.rounds == 1 + 48 // 4 and sample.steps.accepted == 36


def test_it_serves_requests_of_its_own_meanwhile() -> None:
    drafting = Drafting("model", "small", length=4, fixed=True)
    own = [replace(request, mask=None, watch=None) for request in requests()[:4]]
    expected = served(engine_with(), tuple(own))
    engine = engine_with()
    small = [engine.submit("small", request) for request in own]
    large = [engine.submit("m", replace(request, draft=drafting)) for request in own]
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    assert [ticket.result().samples for ticket in large] == expected
    alone = engine_with()
    tickets = [alone.submit("small", request) for request in own]
    while alone.has_work:
        alone.step()
    assert [ticket.result().samples for ticket in small] == [ticket.result().samples for ticket in tickets]


def test_samples_of_one_prompt_share_what_the_drafting_model_computed() -> None:
    engine = engine_with()
    prompt = tuple(range(1, 91))
    drafting = Drafting("model", "small", length=2, fixed=True)
    engine.submit("m", GenerateRequest(prompt, tuple(range(8)), SamplingParams(1), 20, draft=drafting))
    for _ in range(4):
        engine.step()
    # Five whole pages for all of them, and one or two for each.
    held = engine.runner("small").scheduler.memory.pool.held
    assert 5 + 8 <= held <= 5 + 2 * 8
    while engine.has_work:
        engine.step()
        engine.check_integrity()


def test_what_a_draft_holds_goes_before_any_sequence() -> None:
    engine = engine_with(9)
    prompt = tuple(range(1, 30))
    drafting = Drafting("model", "small", length=2, fixed=True)
    first = engine.submit("m", GenerateRequest(prompt, (1,), SamplingParams(1), 100, draft=drafting))
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    assert len(first.result().samples[0].tokens) == 100
    assert engine.runner("m").scheduler.preemptions == 0


def test_what_cannot_draft_is_refused_when_it_is_asked_for() -> None:
    engine = PagedEngine()
    engine.add("m", paged("llama"))
    engine.add("other", paged("llama", vocab_size=120))
    request = GenerateRequest((1, 2), (0,), SamplingParams(0), 5)
    for name, message in {
        "nobody": "nobody is to draft for m, and there is no such model",
        "other": "other cannot draft for m: its vocabulary is another, of 120 ids and not 101",
    }.items():
        with pytest.raises(EngineError, match=message):
            engine.submit("m", replace(request, draft=Drafting("model", name)))
    assert not engine.has_work


def test_every_way_to_draft_of_a_plan_is_one_of_the_engine() -> None:
    assert set(DRAFTERS) == {variant.name for variant in DRAFTS}
    engine = PagedEngine()
    engine.add("m", paged("llama"))
    request = GenerateRequest((1, 2), (0,), SamplingParams(0), 5, draft=Drafting("guessing"))
    with pytest.raises(EngineError, match="m has no way to draft `guessing`"):
        engine.submit("m", request)

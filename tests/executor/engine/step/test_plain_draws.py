"""Steps of samples that ask for tokens alone give what any other step gives, bit for bit, with little work a row."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.model_runner import ModelRunner
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.engine.step.token_head import PlainDraws
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from tests.executor.engine.draft.test_drafts import random_head
from tests.support.executor.models import engine_of, random_model, served
from tests.support.executor.rule_mask import RuleMask

PLAIN = GenerateRequest((5, 6, 7, 8), (1, 2, 3), SamplingParams(0.9), 20)
REQUESTS = (
    PLAIN,
    replace(PLAIN, prompt=tuple(range(3, 40)), keys=(7,), logprobs=True, drawn=3),
    replace(PLAIN, sampling=SamplingParams(0.0), keys=(4,), eos=frozenset({9, 17, 23}), max_tokens=12),
    replace(PLAIN, sampling=SamplingParams(1.0, top_p=0.9), max_tokens=6),
    replace(PLAIN, mask=RuleMask, max_tokens=5),
)


@pytest.fixture(scope="module")
def models() -> dict[bool, PagedModel]:
    return {kernels: PagedModel(random_model("llama"), kernels=kernels) for kernels in (False, True)}


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("pages", [400, 6])
def test_samples_are_those_of_other_steps(
    kernels: bool, pages: int, models: dict[bool, PagedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among others that ask for more, with preemption, and where samples end by an eos."""
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)
    plain = 0
    launch = ModelRunner._draw_plainly

    def counted(self: ModelRunner, *args: Any) -> None:
        nonlocal plain
        plain += 1
        launch(self, *args)

    monkeypatch.setattr(ModelRunner, "_draw_plainly", counted)

    def drawn() -> list[tuple[Sample, ...]]:
        return served(engine_of(models[kernels], pages, EngineConfig(max_sequences=6)), REQUESTS)

    found = drawn()
    assert plain >= 3
    monkeypatch.setattr(PlainDraws, "of", lambda self, chunks: None)
    before = plain
    assert drawn() == found and plain == before


@pytest.mark.parametrize("draft", [Drafting("ngram"), Drafting("eagle", "head")])
def test_steps_without_a_proposal_are_plain_where_something_drafts(
    draft: Drafting, models: dict[bool, PagedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that looks at hidden states is shown those of plain steps too. What it guesses by chance never pays."""
    plain = 0
    launch = ModelRunner._draw_plainly

    def counted(self: ModelRunner, *args: Any) -> None:
        nonlocal plain
        plain += 1
        launch(self, *args)

    monkeypatch.setattr(ModelRunner, "_draw_plainly", counted)
    request = replace(PLAIN, max_tokens=60)
    engine = engine_of(models[False], 400)
    engine.add_head("head", random_head(False))
    (drafted,) = served(engine, (replace(request, draft=draft),))
    assert plain >= 30
    (alone,) = served(engine_of(models[False], 400), (request,))
    assert [sample.tokens for sample in drafted] == [sample.tokens for sample in alone]
    assert [sample.logprobs for sample in drafted] == [sample.logprobs for sample in alone]


def test_a_row_of_a_plain_step_costs_a_third_fewer_calls(
    models: dict[bool, PagedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of Python functions in a step of 64 rows less those in one of 8."""
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)

    def calls(rows: int) -> int:
        engine = engine_of(models[True], 400)
        for row in range(rows):
            engine.submit("m", GenerateRequest((5, 6, 7 + row), (row,), SamplingParams(0.9), 30))
        for _ in range(4):
            engine.step()
        count = 0

        def called(frame: FrameType, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(called)
        try:
            engine.step()
        finally:
            sys.setprofile(None)
        return count

    plain = calls(64) - calls(8)
    monkeypatch.setattr(PlainDraws, "of", lambda self, chunks: None)
    assert plain < 0.7 * (calls(64) - calls(8))

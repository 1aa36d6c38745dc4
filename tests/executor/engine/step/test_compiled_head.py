"""Samples do not depend on which ids the compiled head computes, nor on whether there is one."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from qpdsl.executor.engine.batch.staging import Staging
from qpdsl.executor.engine.step import sampler
from qpdsl.executor.engine.step.draws import Draw, Masks
from qpdsl.executor.engine.step.readout import Readout
from qpdsl.executor.engine.step.routed_head import CompiledHead
from qpdsl.executor.kernels.llvm import panel_head
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.kernels.llvm.head_screen import HeadScreen
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from tests.support.executor.models import VOCABULARY, engine_of, paged, served
from tests.support.executor.rule_mask import RuleMask

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

_SAMPLINGS = (SamplingParams(0), SamplingParams(1.0), SamplingParams(0.7, top_k=20), SamplingParams(1.5, min_p=0.05))


def requests() -> list[GenerateRequest]:
    """With masks and without, with filters and without, some samples forked from one prompt."""
    rng = random.Random(4)
    found = []
    for number in range(8):
        prompt = tuple(rng.randrange(1, VOCABULARY) for _ in range(rng.randrange(3, 30)))
        keys = tuple(rng.getrandbits(64) for _ in range(1 + number % 3))
        mask = RuleMask if number % 4 != 3 else None
        found.append(GenerateRequest(prompt, keys, _SAMPLINGS[number // 2], 12, mask=mask))
    return found


def tokens_and_scores(samples: list[tuple[Sample, ...]]) -> list[tuple[tuple[int, ...], float]]:
    return [(sample.tokens, sample.logprob) for group in samples for sample in group]


@pytest.mark.parametrize(("name", "native"), [("llama", True), ("gemma2", True), ("gpt_neox", False)])
def test_samples_are_the_same_with_all_ids_and_with_those_allowed(name: str, native: bool) -> None:
    model = paged(name, native=native)
    assert model.panel_head is not None
    batch = requests()
    dense = tokens_and_scores(served(engine_of(model), tuple(batch)))
    sparse = [replace(request, sparse=True) for request in batch]
    assert tokens_and_scores(served(engine_of(model), tuple(sparse))) == dense
    # Alone, and with others that are dense.
    alone = [sample for request in sparse for sample in served(engine_of(model), (request,))]
    assert tokens_and_scores(alone) == dense
    mixed = [replace(request, sparse=number % 2 == 0) for number, request in enumerate(batch)]
    assert tokens_and_scores(served(engine_of(model), tuple(mixed))) == dense


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_samples_whose_log_probabilities_nobody_reads_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel_head, "_SCREENED_BYTES", 0)
    screens: list[int] = []
    panels = HeadScreen.panels
    monkeypatch.setattr(HeadScreen, "panels", lambda *given: screens.append(1) or panels(*given))
    model, batch = paged(name), requests()
    told = [(one.tokens, one.near_ties) for group in served(engine_of(model), tuple(batch)) for one in group]
    unread = tuple(
        replace(request, logprobs=False, sparse=number % 2 == 0, draft=Drafting("ngram") if number % 3 == 0 else None)
        for number, request in enumerate(batch)
    )
    together = [one for group in served(engine_of(model), unread) for one in group]
    alone = [one for request in unread for group in served(engine_of(model), (request,)) for one in group]
    for samples in (together, alone):
        assert [sample.tokens for sample in samples] == [tokens for tokens, _ in told]
        assert [sample.logprob for sample in samples] == [0.0] * len(told)
        assert [sample.near_ties for sample in samples] == [ties for _, ties in told]
    assert screens


def test_draws_of_all_kinds_in_one_step_are_those_over_logits() -> None:
    model = paged("gemma2")
    assert model.panel_head is not None
    rng = np.random.default_rng(2)
    draws = []
    for number in range(40):
        params = _SAMPLINGS[number % 4]
        draws.append(Draw(number % 7, params, number * 977, number, int(rng.integers(-1, 6)), number % 2 == 0))
    bits = np.zeros((6, -(-VOCABULARY // 32)), dtype=np.int32)
    for row, count in zip(bits, (1, 2, 5, 30, 90, VOCABULARY), strict=True):
        ids = np.zeros(len(row) * 32, dtype=bool)
        ids[rng.choice(VOCABULARY, count, replace=False)] = True
        row[:] = np.packbits(ids, bitorder="little").view(np.int32)
    masks = Masks(bits, np.bitwise_count(bits.view(np.uint32)).sum(axis=1, dtype=np.int64), {})
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 48, generator=generator)
    staging = Staging("cpu")
    drawn = Readout(model, staging, sampler.sample, head=CompiledHead(model.panel_head)).sample(hidden, draws, masks)
    expected = Readout(model, staging, sampler.sample).sample(hidden, draws, masks)
    for index in range(len(draws)):
        assert drawn.tokens[index] == expected.tokens[index] or expected.near_ties[index]
        assert drawn.logprobs[index] == pytest.approx(expected.logprobs[index], abs=1e-4)
    assert drawn.near_ties == expected.near_ties

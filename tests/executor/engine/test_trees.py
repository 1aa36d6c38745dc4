"""Trees of tokens in one forward: a node is what a plain decode of its path computes, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Sequence as Several
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qpdsl.executor.engine.draft.drafters import Drafter
from qpdsl.executor.engine.draft.ngram import NGramDrafter
from qpdsl.executor.engine.memory.sequence import Proposal, Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from qpdsl.grammar.words import KVType
from tests.support.executor.models import VOCABULARY, engine_of, random_model, served
from tests.support.executor.trees import Bench, Tokens, path_states, random_tree, tree_states

PAGES = 2000


@cache
def model(name: str, kv_type: KVType | None = None, native: bool = True, kernels: bool | None = None) -> PagedModel:
    wide = {"head_dim": 16} if kv_type == "int4" else {}
    made = PagedModel(random_model(name, **wide), kv_type=kv_type, native=native, kernels=kernels)
    assert made.native == (native and not kernels)
    return made


def text(rng: random.Random, length: int) -> Tokens:
    return tuple(rng.randrange(1, VOCABULARY) for _ in range(length))


def check(
    paged: PagedModel, seed: int, lengths: list[int], nodes: list[int], exact: bool, rows: int | None, filled: int = 0
) -> None:
    """Trees behind texts of these lengths, some of whose last tokens are computed with them, beside a text without."""
    rng = random.Random(seed)
    cases = [
        (text(rng, length), rng.randint(1, min(length, 9)), random_tree(rng, count, VOCABULARY))
        for length, count in zip(lengths, nodes, strict=True)
    ]
    together = tree_states(
        Bench(paged, PAGES, rows, filled), [*cases, (text(rng, 20), 1, None), (text(rng, 33), 7, None)]
    )
    for (tokens, _, tree), states in zip(cases, together, strict=False):
        alone = path_states(Bench(paged, PAGES, rows, filled), tokens, tree)
        assert states.isfinite().all()
        if exact:
            assert torch.equal(states, alone)
        else:
            torch.testing.assert_close(states, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "kv_type"),
    [("llama", None), ("mistral", "int8"), ("gemma2", None), ("gpt_neox", "fp8"), ("llama", "int4")],
)
@settings(max_examples=4)
@given(seed=st.integers(0, 999), length=st.integers(1, 70), nodes=st.integers(1, 20))
def test_compiled_layers_compute_a_node_with_the_bits_of_its_path(
    name: str, kv_type: KVType | None, seed: int, length: int, nodes: int
) -> None:
    check(model(name, kv_type), seed, [length, 40], [nodes, 9], True, None, 0xFF)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_neox"])
def test_torch_attends_to_a_path_with_the_bits_of_its_tokens(name: str) -> None:
    check(model(name, native=False), 3, [70, 5], [30, 6], True, None)


@pytest.mark.parametrize(
    ("name", "kv_type", "rows"), [("llama", None, None), ("gemma2", "int8", None), ("llama", None, 128)]
)
def test_the_twins_of_the_attention_kernels_read_paths(
    name: str, kv_type: KVType | None, rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a text so long that it is read once for the whole tree."""
    monkeypatch.setattr(paged_attention, "_INTERPRETED", False)
    check(model(name, kv_type, kernels=True), 4, [170, 30], [12, 5], False, rows)


class RandomTrees(Drafter):
    """Proposes random trees; in many of them is what will be drawn, up to some token."""

    def __init__(self, samples: dict[int, Tokens]) -> None:
        self._samples = samples
        self._rng = random.Random(6)

    def propose(self, samples: Several[Sequence], lengths: Several[int]) -> list[Proposal | None]:
        return [self._tree(sample, length) for sample, length in zip(samples, lengths, strict=True)]

    def _tree(self, sample: Sequence, length: int) -> Proposal | None:
        rng, known = self._rng, self._samples[sample.generation.keys[sample.index]]
        right = known[sample.drawn : sample.drawn + rng.randint(0, length)]
        if not length or rng.random() < 0.2:
            return None
        tree = random_tree(rng, max(len(right), rng.randint(1, 14)), VOCABULARY, right)
        # Nothing may stand behind the last token that can be drawn.
        return tree if max(tree.depths) < length else None


def requests() -> tuple[GenerateRequest, ...]:
    rng = random.Random(8)
    kinds = (SamplingParams(0.0), SamplingParams(0.9), SamplingParams(1.2, top_k=15))
    return tuple(
        GenerateRequest(text(rng, rng.randint(1, 60)), (10 * index, 10 * index + 1), kinds[index % 3], 30)
        for index in range(9)
    )


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("pages", "budget"), [(400, 2048), (400, 40), (14, 2048)])
def test_trees_change_no_sample(native: bool, pages: int, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    paged = model("llama", native=native)
    plain = served(engine_of(paged), requests())
    drawn = {
        key: sample.tokens
        for request, samples in zip(requests(), plain, strict=True)
        for key, sample in zip(request.keys, samples, strict=True)
    }
    monkeypatch.setattr(NGramDrafter, "of", lambda drafting, host: RandomTrees(drawn))
    reports: list[StepReport] = []
    engine = engine_of(paged, pages, EngineConfig(token_budget=budget), reports.append)
    drafting = Drafting("ngram", branches=2, length=5, fixed=True)
    drafted = served(engine, tuple(replace(request, draft=drafting) for request in requests()))
    assert drafted == plain
    steps: list[Sample] = [sample for samples in drafted for sample in samples]
    assert sum(sample.steps.accepted for sample in steps) > 20 * (pages > 14)
    assert (reports[-1].preemptions > 0) == (pages == 14)

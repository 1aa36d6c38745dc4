"""Trees of tokens in one forward: a node is what a plain decode of its path computes, bit for bit."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qpdsl.executor.engine.model.paged_model import PagedModel
from tests.support.executor.models import VOCABULARY, random_model
from tests.support.executor.trees import Bench, Tokens, path_states, random_tree, tree_states

PAGES = 2000


@cache
def model(name: str, kv_type: str | None = None, native: bool = True, kernels: bool | None = None) -> PagedModel:
    made = PagedModel(random_model(name), kv_type=kv_type, native=native, kernels=kernels)
    assert made.native == (native and not kernels)
    return made


def text(rng: random.Random, length: int) -> Tokens:
    return tuple(rng.randrange(1, VOCABULARY) for _ in range(length))


def check(paged: PagedModel, seed: int, lengths: list[int], nodes: list[int], exact: bool, rows: int | None) -> None:
    """Trees behind texts of these lengths, some of whose last tokens are computed with them, beside a text without."""
    rng = random.Random(seed)
    cases = [
        (text(rng, length), rng.randint(1, min(length, 9)), random_tree(rng, count, VOCABULARY))
        for length, count in zip(lengths, nodes, strict=True)
    ]
    filled = 0xFF if exact else 0
    together = tree_states(Bench(paged, PAGES, rows, filled), [*cases, (text(rng, 20), 1, None), (text(rng, 33), 7, None)])
    for (tokens, _, tree), states in zip(cases, together, strict=False):
        alone = path_states(Bench(paged, PAGES, rows, filled), tokens, tree)
        assert states.isfinite().all()
        if exact:
            assert torch.equal(states, alone)
        else:
            torch.testing.assert_close(states, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "kv_type"), [("llama", None), ("mistral", "int8"), ("gemma2", None), ("gpt_neox", "fp8")]
)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 999), length=st.integers(1, 70), nodes=st.integers(1, 20))
def test_compiled_layers_compute_a_node_with_the_bits_of_its_path(
    name: str, kv_type: str | None, seed: int, length: int, nodes: int
) -> None:
    check(model(name, kv_type), seed, [length, 40], [nodes, 9], True, None)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_neox"])
def test_torch_attends_to_a_path_with_the_bits_of_its_tokens(name: str) -> None:
    check(model(name, native=False), 3, [70, 5], [30, 6], True, None)


@pytest.mark.parametrize(("name", "kv_type", "rows"), [("llama", None, None), ("gemma2", "int8", None), ("llama", None, 128)])
def test_the_twins_of_the_attention_kernels_read_paths(name: str, kv_type: str | None, rows: int | None) -> None:
    """Long enough that what lies before the trees is shared."""
    check(model(name, kv_type, kernels=True), 4, [170, 30], [12, 5], False, rows)

"""Draws follow the filtered softmax, filters are transformers', and near ties are seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from qpdsl.executor.engine.step.sampler import sample
from qpdsl.executor.requests.request import SamplingParams


def probabilities(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    scores = logits[None] / params.temperature
    ids = torch.zeros(1, 1, dtype=torch.long)
    if params.top_k is not None:
        scores = TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p is not None:
        scores = TopPLogitsWarper(params.top_p)(ids, scores)
    if params.min_p is not None:
        scores = MinPLogitsWarper(params.min_p)(ids, scores)
    return scores.softmax(-1)[0]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(1.0),
        SamplingParams(0.6),
        SamplingParams(2.0, top_k=7),
        SamplingParams(1.0, top_p=0.7),
        SamplingParams(1.5, min_p=0.1),
        SamplingParams(1.2, top_k=12, top_p=0.9, min_p=0.05),
    ],
)
def test_draws_follow_transformers_distribution(params: SamplingParams) -> None:
    torch.manual_seed(5)
    logits = torch.randn(31) * 2
    expected = probabilities(logits, params)
    count = 6000
    draw = sample(logits.expand(count, -1), [params] * count, list(range(count)), [3] * count)
    observed = torch.bincount(draw.tokens, minlength=31).double()
    assert observed[expected == 0].sum() == 0
    alive = expected > 0
    chi2 = ((observed - expected.double() * count)[alive] ** 2 / (expected.double() * count)[alive]).sum().item()
    freedom = int(alive.sum()) - 1
    # Wilson–Hilferty: a chi-square this large has a probability of about one in ten thousand.
    assert chi2 <= freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3


def test_a_row_draws_the_same_in_any_batch() -> None:
    torch.manual_seed(1)
    logits = torch.randn(64, 203) * 3
    params = [
        [SamplingParams(0.8), SamplingParams(0.0), SamplingParams(1.0, top_p=0.9), SamplingParams(1.1, top_k=5)][i % 4]
        for i in range(64)
    ]
    keys = [i * 0x9E3779B97F4A7C15 % (1 << 64) for i in range(64)]
    together = sample(logits, params, keys, list(range(64)))
    for row in range(64):
        alone = sample(logits[row : row + 1], [params[row]], [keys[row]], [row])
        assert alone.tokens[0] == together.tokens[row]


def test_noise_changes_with_key_and_position() -> None:
    logits = torch.zeros(1, 400)
    params = [SamplingParams(1.0)]
    drawn = {
        (key, position): int(sample(logits, params, [key], [position]).tokens)
        for key in range(12)
        for position in range(12)
    }
    assert len(set(drawn.values())) > 90


def test_near_ties_are_counted() -> None:
    greedy = [SamplingParams(0.0)] * 2
    logits = torch.tensor([[1.0, 3.0, 3.00005, 0.0], [1.0, 3.0, 3.001, 0.0]])
    assert sample(logits, greedy, [0, 0], [0, 0]).near_ties.tolist() == [True, False]
    even = torch.zeros(1, 4)
    assert sample(even, [SamplingParams(1.0, top_p=0.5)], [0], [0]).near_ties.item()
    assert sample(even, [SamplingParams(1.0, min_p=0.9999999)], [0], [0]).near_ties.item()
    assert not sample(torch.tensor([[0.0, 1.0, 2.0, 3.0]]), [SamplingParams(1.0, top_p=0.5)], [0], [0]).near_ties.item()


def test_an_id_out_of_reach_of_the_noise_is_never_drawn_and_minus_infinity_is_harmless() -> None:
    logits = torch.tensor([[0.0, -40.0, float("-inf"), -1.0]])
    tokens = {int(sample(logits, [SamplingParams(1.0)], [key], [0]).tokens) for key in range(300)}
    assert tokens == {0, 3}


def test_the_first_of_equals_is_the_greedy_choice_and_next_to_no_temperature_is_greedy() -> None:
    logits = torch.zeros(1, 500)
    logits[0, 7] = logits[0, 300] = 4.0
    for temperature in (0.0, 1e-9, 1e-39):
        assert int(sample(logits, [SamplingParams(temperature)], [5], [0]).tokens) == 7


@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}])
def test_a_temperature_beyond_float32_is_as_any_very_high_one(filters: dict[str, Any]) -> None:
    torch.manual_seed(2)
    logits = torch.randn(50, 31)
    logits[:, 20:] = -torch.inf
    drawn = [
        sample(logits, [SamplingParams(temperature, **filters)] * 50, list(range(50)), [0] * 50).tokens
        for temperature in (1e30, 1e39, 1e300)
    ]
    assert drawn[0].equal(drawn[1]) and drawn[0].equal(drawn[2])
    assert drawn[0].max() < 20

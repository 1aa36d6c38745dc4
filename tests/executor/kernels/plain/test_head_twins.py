"""The head in torch draws what the sampler draws from logits, with the same bits in any batch."""

from __future__ import annotations

import pytest
import torch

from qpdsl.executor.kernels.plain import head_twins
from tests.support.executor.head_case import HeadCase, head_case, same_draws

CASES = {
    # More ids than one block has.
    "blocks": lambda: head_case(33_001, 20, [0, 1, 1], allowed=[None, [33_000], list(range(0, 33_001, 4))]),
    "biased, capped": lambda: head_case(130, 64, [0, 1, 2, 3, 4], biased=True, scale=0.25, softcap=5.0, seed=1),
    "bfloat16": lambda: head_case(300, 96, [row % 3 for row in range(21)], torch.bfloat16, seed=2),
    "nothing masked": lambda: head_case(9000, 40, [0, 1, 2, 3], allowed=[None] * 4, seed=3),
}


Drawn = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def by_dense(case: HeadCase) -> Drawn:
    masked = case.lines() if any(ids is not None for ids in case.allowed) else (None, None)
    return head_twins.dense(case.hidden, case.head, case.draws, *masked)


@pytest.mark.parametrize("name", CASES)
def test_draws_are_the_samplers(name: str) -> None:
    case = CASES[name]()
    same_draws(by_dense(case), case)


@pytest.mark.parametrize("name", ["blocks", "bfloat16"])
def test_a_draw_has_the_same_bits_in_any_batch(name: str) -> None:
    case = CASES[name]()
    together = by_dense(case)
    for draw in range(len(case.allowed)):
        assert [float(value) for value in by_dense(case.of(draw))] == [float(value[draw]) for value in together]


def test_a_draw_without_ids_disturbs_no_other() -> None:
    case = head_case(200, 16, [0, 0, 1], seed=9, allowed=[[3, 150], [], [11, 12]])
    drawn, alone = by_dense(case), by_dense(case.of(0, 2))
    assert 0 <= int(drawn[0][1]) < 200
    assert all(torch.equal(mine[[0, 2]], theirs) for mine, theirs in zip(drawn, alone, strict=True))

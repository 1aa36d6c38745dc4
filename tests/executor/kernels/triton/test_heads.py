"""The head's kernel draws what the sampler draws from logits, in any batch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from qpdsl.executor.kernels.plain import head_twins
from qpdsl.executor.kernels.triton.head_kernels import dense
from qpdsl.executor.kernels.triton.sample import sample
from tests.support.executor.head_case import HeadCase, head_case, same_draws

CASES = {
    # Neither the vocabulary nor the width is a multiple of a tile's; several draws read one hidden state.
    "plain": lambda: head_case(333, 50, [0, 1, 1, 1, 2, 0, 2]),
    "biased, scaled": lambda: head_case(130, 64, [0, 1, 2, 3, 4], biased=True, scale=0.25, seed=1),
    "soft-capped": lambda: head_case(257, 24, [0, 0, 1, 1, 1, 2, 3, 4], softcap=5.0, seed=2),
    "bfloat16": lambda: head_case(300, 96, [0, 1, 2, 2, 2], torch.bfloat16, biased=True, softcap=30.0, seed=3),
    "float16": lambda: head_case(128, 33, [3, 2, 1, 0, 0], torch.float16, seed=4),
    "many draws": lambda: head_case(140, 16, [row % 5 for row in range(19)], seed=5),
    "three ids": lambda: head_case(3, 8, [0, 0, 1], allowed=[None, [0, 1, 2], [0, 2]], seed=6),
    "nothing masked": lambda: head_case(200, 40, [0, 1, 2, 3], allowed=[None] * 4, seed=7),
}


Drawn = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def by_dense(case: HeadCase, deterministic: bool = False) -> Drawn:
    masked = case.lines() if any(ids is not None for ids in case.allowed) else (None, None)
    return dense(case.hidden, case.head, case.draws, *masked, deterministic=deterministic)


@pytest.mark.parametrize("name", CASES)
def test_draws_are_the_samplers(name: str) -> None:
    case = CASES[name]()
    same_draws(by_dense(case), case)


def test_kernel_and_twin_agree() -> None:
    case = CASES["soft-capped"]().masked()
    mine, theirs = by_dense(case), head_twins.dense(case.hidden, case.head, case.draws, *case.lines())
    assert torch.equal(mine[0], theirs[0])
    torch.testing.assert_close(mine[1], theirs[1], rtol=0, atol=1e-5)
    torch.testing.assert_close(mine[2], theirs[2], rtol=0, atol=2e-5)


def test_a_draw_has_the_same_bits_in_any_batch() -> None:
    case = CASES["many draws"]()
    together = by_dense(case, deterministic=True)
    for draw in (0, 18):
        alone = by_dense(case.of(draw), deterministic=True)
        assert [float(value) for value in alone] == [float(value[draw]) for value in together]


def test_equal_logits_go_to_the_first_and_are_a_tie() -> None:
    """In one tile, and in two."""
    case = head_case(300, 16, [0, 0, 0], allowed=[[7, 9], [60, 290], [*range(100, 109), 250]], seed=8)
    case.draws.temperatures.zero_()
    case.hidden.abs_()
    case.head.weight[:] = 0
    case.head.weight[[7, 9, 60, 290, 100, 250]] = 1
    tokens, _, gaps = by_dense(case)
    assert tokens.tolist() == [7, 60, 100] and gaps.tolist() == [0, 0, 0]


def test_a_draw_without_ids_disturbs_no_other() -> None:
    case = head_case(200, 16, [0, 0, 1], seed=9, allowed=[[3, 150], [], [11, 12]])
    tokens, logprobs, _ = by_dense(case)
    others = by_dense(case.of(0, 2))
    assert torch.equal(tokens[[0, 2]], others[0]) and 0 <= int(tokens[1]) < 200
    torch.testing.assert_close(logprobs[[0, 2]], others[1], rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_logit_that_is_no_number_shows_in_the_log_probability() -> None:
    """Of one id alone, whatever is drawn; and in nothing where the id may not come."""
    case = head_case(200, 16, [0, 1, 2], seed=10, allowed=[[3, 17, 150], [17, 180], [3, 150]])
    case.head.weight[17] = float("nan")
    _, logprobs, _ = by_dense(case)
    assert logprobs.isfinite().tolist() == [False, False, True]
    logits = case.hidden @ case.head.weight.T
    assert logits.isnan().sum() == 3
    assert sample(logits, case.draws)[1].isfinite().tolist() == [False] * 3

"""The compiled head: the tokens of the sampler over logits, and the same bits however it is computed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

from qpdsl.executor.engine.step.sampler import NEAR_TIE_GAP, sample
from qpdsl.executor.kernels.llvm import product as products
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.kernels.llvm.panel_head import Arm, HeadPlanner, Numbers, PanelHead
from qpdsl.executor.kernels.llvm.panels import PanelWeights
from qpdsl.executor.kernels.llvm.product import Product
from qpdsl.executor.requests.request import SamplingParams
from qpdsl.executor.requests.routing import ARMS
from tests.support.executor.weights import made, step

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

# A head never computes the listed panels alone, or always does.
_NEVER, _ALWAYS = 0.0, 1e9


@dataclass(frozen=True)
class Case:
    """Draws from random hidden states, under masks of one id to all of them and under none."""

    product: Product
    hidden: torch.Tensor
    rows: Numbers
    temperature: Numbers
    keys: Numbers
    positions: Numbers
    allowed: Numbers
    bits: Numbers
    scale: float
    softcap: float | None

    @classmethod
    def made(
        cls,
        form: str,
        vocabulary: int,
        rows: int,
        draws: int,
        *,
        width: int | None = None,
        biased: bool = False,
        scale: float = 0.3,
        softcap: float | None = None,
    ) -> Case:
        inputs = 2 * step(form)
        rng = np.random.default_rng(vocabulary + draws)
        masks = max(1, draws // 2)
        bits = np.zeros((masks, -(-vocabulary // 32)), dtype=np.int32)
        for mask in range(masks):
            # Bits behind the last id mean nothing.
            ids = np.full(bits.shape[1] * 32, mask % 2 == 0)
            ids[:vocabulary] = False
            count = int(rng.choice([1, 2, 20, max(1, vocabulary // 2), vocabulary]))
            ids[rng.choice(vocabulary, min(count, vocabulary), replace=False)] = True
            bits[mask] = np.packbits(ids, bitorder="little").view(np.int32)
        generator = torch.Generator().manual_seed(draws)
        return cls(
            Product(
                PanelWeights(made(form, vocabulary, inputs), width or vector_width()),
                torch.randn(vocabulary, generator=generator) if biased else None,
            ),
            torch.randn(rows, inputs, generator=generator),
            np.sort(np.arange(draws) % rows),
            rng.choice([0.0, 0.5, 1.0, 2.0], draws).astype(np.float32),
            rng.integers(-(1 << 62), 1 << 62, draws),
            rng.integers(0, 1 << 20, draws),
            rng.integers(-1, masks, draws),
            bits,
            scale,
            softcap,
        )

    def drawn(
        self, share: float, sparse: bool = True, draws: slice | Numbers = slice(None), arm: Arm | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        head = PanelHead(self.product, self.scale, self.softcap, share)
        arrays = (self.rows, self.temperature, self.keys, self.positions, self.allowed)
        own = [array[draws] for array in arrays]
        return head(self.hidden, *own, np.full(len(own[0]), sparse), self.bits, arm)

    def logits(self) -> torch.Tensor:
        """float32 [D, V] under the masks."""
        logits = self.product(self.hidden)[torch.from_numpy(self.rows)] * self.scale
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        ids = np.unpackbits(self.bits.view(np.uint8), axis=1, bitorder="little")[:, : logits.shape[1]] != 0
        allowed = np.where(self.allowed[:, None] >= 0, ids[self.allowed], True)
        return logits.masked_fill(~torch.from_numpy(allowed), float("-inf"))


def check(case: Case) -> None:
    """Tokens of the sampler but for near ties, and the same bits over all panels and over listed ones."""
    drawn = tokens, logprobs, gaps = case.drawn(_NEVER)
    params = [SamplingParams(float(temperature)) for temperature in case.temperature]
    keys = [key % (1 << 64) for key in case.keys.tolist()]
    expected = sample(case.logits(), params, keys, case.positions.tolist())
    assert ((tokens == expected.tokens) | expected.near_ties).all()
    assert torch.equal(gaps < NEAR_TIE_GAP, expected.near_ties)
    torch.testing.assert_close(logprobs, expected.logprobs, rtol=1e-4, atol=3e-5)
    for other in (case.drawn(_ALWAYS), case.drawn(1.0), case.drawn(_ALWAYS, sparse=False)):
        assert all(map(torch.equal, drawn, other))
    for arm in ARMS:
        assert all(map(torch.equal, drawn, case.drawn(_NEVER, arm=arm)))


# Every way of storing weights; the other forms differ in sizes.
@pytest.mark.parametrize("form", ["float32", "bfloat16", "float16", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize(("rows", "draws"), [(1, 1), (7, 7), (3, 64)])
def test_dense_and_sparse_give_the_same_bits(form: str, rows: int, draws: int) -> None:
    check(Case.made(form, 2051, rows, draws, biased=draws == 7, softcap=5.0 if rows == 3 else None))


@pytest.mark.parametrize("form", ["float32", "Q4_K"])
@pytest.mark.parametrize("width", [4, 8])
def test_narrower_vectors(form: str, width: int) -> None:
    for vocabulary in (3, 40, 1300):
        check(Case.made(form, vocabulary, 5, 9, width=width))


def test_the_bits_of_a_draw_do_not_depend_on_threads_or_on_other_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case.made("float32", 5003, 6, 30)
    alone = [case.drawn(_ALWAYS, draws=np.array([draw])) for draw in range(30)]
    monkeypatch.setattr(products, "_WORK", 1 << 10)
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", partial(int, threads))
        for share in (_NEVER, _ALWAYS, 1.0):
            for result, parts in zip(case.drawn(share), zip(*alone, strict=True), strict=True):
                assert torch.equal(result, torch.cat(parts))
            backwards = case.drawn(share, draws=np.arange(30)[::-1])
            assert torch.equal(backwards[1].flip(0), torch.cat([logprobs for _, logprobs, _ in alone]))


def test_a_draw_that_may_take_nothing_harms_no_other() -> None:
    case = Case.made("float32", 300, 2, 6)
    case.allowed[:] = np.arange(6) % 3
    expected = case.drawn(_NEVER)
    case.bits[1] = 0
    for share in (_NEVER, _ALWAYS):
        tokens, logprobs, _ = case.drawn(share)
        empty = torch.arange(6) % 3 == 1
        assert (tokens[empty] < 300).all() and not logprobs[empty].isfinite().any()
        assert torch.equal(tokens[~empty], expected[0][~empty])
        assert torch.equal(logprobs[~empty], expected[1][~empty])
    case.bits[:] = 0
    assert not case.drawn(_ALWAYS)[1].isfinite().any()


def test_logits_that_are_not_numbers_give_no_log_probability() -> None:
    case = Case.made("float32", 100, 2, 2)
    case.allowed[:] = -1
    case.hidden[0, 3] = float("nan")
    tokens, logprobs, _ = case.drawn(_NEVER)
    assert logprobs.isfinite().tolist() == [False, True]
    assert tokens.max() < 100


def test_a_plan_lists_the_least() -> None:
    planner = HeadPlanner(640, 16, share=0.9)
    rng = random.Random(3)

    def masks(*ids: range | list[int]) -> Numbers:
        allowed = np.zeros((len(ids), 640 * 16), dtype=bool)
        for row, own in zip(allowed, ids, strict=True):
            row[list(own)] = True
        return np.packbits(allowed, axis=1, bitorder="little").view(np.int32)

    def listed(bits: Numbers, may: int | None = None, arm: Arm | None = None) -> list[int]:
        """How many panels each group has."""
        draws = np.arange(len(bits))
        plan = planner.plan(draws, draws < (len(bits) if may is None else may), bits, arm)
        return [int(length) for length in plan.lengths]

    assert listed(masks([5, 6, 7, 16, 9999])) == [3]
    # By themselves where they have little in common, together where they have much.
    assert listed(masks(range(160), range(3200, 3360))) == [10, 10]
    assert listed(masks(range(160), range(16, 176))) == [11]
    # All of them where most panels are needed, or where the draw may not be sparse.
    assert listed(masks(rng.sample(range(640 * 16), 5000))) == [640]
    assert listed(masks([1], [2]), may=0) == [640]
    assert listed(masks(*[[1]] * 8), may=4) == [1, 640]
    # As an arm says, whatever is least: by the draws' own masks, by one list, over all.
    assert listed(masks(range(160), range(3200, 3360)), arm="union") == [20]
    assert listed(masks(range(160), range(16, 176)), arm="rows") == [10, 10]
    assert listed(masks([1], range(160)), arm="dense") == [640]

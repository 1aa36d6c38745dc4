"""What the kernel leaves of a row is what sorting it leaves: the ids, and whether rounding could have moved the cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from qpdsl.executor.engine.batch.staging import Parcel, Staging
from qpdsl.executor.engine.step import sampler
from qpdsl.executor.engine.step.sampler import DeviceSampler
from qpdsl.executor.kernels.data.token_draws import Drawn, Filters, TokenDraws
from qpdsl.executor.kernels.triton import cut as cut_module
from qpdsl.executor.kernels.triton.cut import cut
from qpdsl.executor.requests.request import SamplingParams
from tests.support.executor.paged_case import DEVICE

INF = float("inf")
# Bits and lines, as the heads take them.
Mask = tuple[torch.Tensor, torch.Tensor]


def sent(logits: torch.Tensor, params: list[SamplingParams]) -> tuple[TokenDraws, Filters | None]:
    """What the sampler gives its kernel for a draw from each row."""
    given: list[tuple[TokenDraws, Filters | None]] = []

    def kernel(logits: torch.Tensor, draws: TokenDraws, bits: object, lines: object, filters: Filters | None) -> Drawn:
        given.append((draws, filters))
        return draws.keys, draws.temperatures, draws.temperatures

    parcel = Parcel(Staging(str(DEVICE)))
    none = [0] * len(params)
    planned = DeviceSampler(Staging(str(DEVICE)), kernel).planned(
        params, none, none, range(len(params)), logits.shape[1], parcel
    )
    parcel.send()
    planned(logits, None)
    return given[0]


def compared(logits: torch.Tensor, params: list[SamplingParams], mask: Mask | None = None) -> None:
    """Asserts of every row the kept ids and the near cuts of `filtered_scores`, which sorts.

    `logits` are masked; with a mask, the kernel gets others where they are.
    """
    draws, filters = sent(logits, params)
    assert filters is not None
    open_logits = logits if mask is None else torch.where(logits == -INF, 9.0, logits)
    least, until, close = (out.cpu() for out in cut(open_logits, draws, *(mask or (None, None)), filters))
    temperatures = torch.tensor([p.temperature or 1.0 for p in params])
    scores = logits.cpu() / temperatures[:, None]
    kept = (scores > least[:, None]) | ((scores == least[:, None]) & (torch.arange(scores.shape[1]) <= until[:, None]))
    filtered = [row for row, p in enumerate(params) if p.filtered and not p.greedy]
    bounds = (torch.from_numpy(bound) for bound in sampler.cuts([params[row] for row in filtered], scores.shape[1]))
    wanted, near = scores.clone(), torch.zeros(len(params), dtype=torch.bool)
    wanted[filtered], near[filtered] = sampler.filtered_scores(scores[filtered], *bounds)
    for row, param in enumerate(params):
        assert bool(close[row]) == bool(near[row]), param
        mine, theirs = kept[row] & (scores[row] > -INF), wanted[row] > -INF
        # Of equals that lie at a cut, a sum with roundings may take one more or less than it should.
        rounded = near[row] and abs(int(mine.sum() - theirs.sum())) <= 1
        assert torch.equal(mine, theirs) or rounded, (param, mine.sum(), theirs.sum())


def some_params(rng: np.random.Generator, count: int) -> list[SamplingParams]:
    """Filters alone and together, some of them off, at several temperatures."""

    def one(values: list[float]) -> float | None:
        return float(rng.choice(values)) if rng.random() < 0.5 else None

    made = []
    for _ in range(count):
        top_k = one([1, 2, 7, 50, 1000, 100_000])
        top_p, min_p = (
            one([1e-7, 0.1, 0.5, 0.9, 0.95, 0.999, 0.9999999, 1.0]),
            one([0, 1e-7, 1e-6, 0.05, 0.25, 0.999999]),
        )
        made.append(
            SamplingParams(float(rng.choice([0.3, 1.0, 1.7])), None if top_k is None else int(top_k), top_p, min_p)
        )
    return [SamplingParams(0.0, top_k=3), SamplingParams(1.0, top_p=0.8), *made]


@pytest.mark.parametrize("seed", range(5))
def test_it_leaves_what_sorting_leaves(seed: int) -> None:
    """Rows wide and narrow, peaked and flat, with ties and with impossible ids."""
    rng = np.random.default_rng(seed)
    for vocabulary in ((1, 33, 1003), (3, 9001))[seed % 2]:
        params = some_params(rng, 4)
        values = rng.normal(size=(len(params), vocabulary)) * rng.choice([0, 0.01, 1, 3, 10], size=(len(params), 1))
        if seed % 3 == 1:
            values = np.round(values * 4) / 4
        if seed % 3 == 2:
            values[rng.random(values.shape) < 0.7] = -INF
            values[:, rng.integers(vocabulary)] = 1.0
        compared(torch.from_numpy(values.astype(np.float32)).to(DEVICE), params)


def test_cuts_through_equals_and_near_neighbours() -> None:
    """Of equals at a cut top-k keeps all and top-p the first, and what is near to a cut is told."""
    even = torch.zeros(1, 40)
    steps = torch.linspace(0, 3, 40)[None]
    zeros = torch.tensor([[0.0, -0.0] * 20])
    tie = torch.full((1, 40), -1.0)
    tie[0, [5, 9, 30]] = 2.0
    near = tie.clone()
    near[0, 9] -= 5e-5
    rows = torch.cat([even, even, steps, zeros, zeros, tie, tie, near, near, even]).to(DEVICE)
    params = [
        SamplingParams(top_p=0.5),
        SamplingParams(min_p=0.9999999),
        SamplingParams(top_p=0.5),
        SamplingParams(top_p=0.33),
        SamplingParams(top_k=3),
        SamplingParams(top_k=2),
        SamplingParams(top_p=0.6),
        SamplingParams(top_k=2),
        SamplingParams(top_k=1),
        SamplingParams(top_k=4, top_p=0.5, min_p=0.1),
    ]
    compared(rows, params)
    compared(rows * 300 - 1000, params)


def test_a_mask_is_read_as_bits() -> None:
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(rng.normal(size=(3, 1003)).astype(np.float32) * 3)
    allowed = rng.random((2, 32 * 32)) < 0.2
    for row, line in ((0, 1), (2, 0)):
        logits[row, ~torch.from_numpy(allowed[line, :1003])] = -INF
    bits = torch.from_numpy(np.packbits(allowed, axis=1, bitorder="little").view(np.int32)).to(DEVICE)
    lines = torch.tensor([1, -1, 0], dtype=torch.int32, device=DEVICE)
    compared(logits.to(DEVICE), [SamplingParams(1.0, 20, 0.9, 0.01)] * 3, (bits, lines))


def test_rows_beyond_the_memory_of_a_launch_wait_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_module, "_MAX_BYTES", 8 * 100 * 2)
    generator = torch.Generator().manual_seed(0)
    params = [SamplingParams(0.0), *([SamplingParams(1.0, top_p=0.7), SamplingParams(1.0)] * 3)]
    compared(torch.randn(len(params), 100, generator=generator).to(DEVICE), params)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_row_without_a_number_ends() -> None:
    """Nothing is asserted of it but that its neighbours are cut as ever."""
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(1.0, 5, 0.9, 0.1)] * 3
    draws, filters = sent(logits, params)
    assert filters is not None
    good = cut(logits.to(DEVICE), draws, None, None, filters)
    logits[0], logits[2] = float("nan"), -INF
    bad = cut(logits.to(DEVICE), draws, None, None, filters)
    assert [float(out[1]) for out in good] == [float(out[1]) for out in bad]

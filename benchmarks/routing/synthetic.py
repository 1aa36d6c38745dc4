"""The cost model of LLM-QP's harness: what a step takes by each arm, as far as the paper's figures determine it.

**Published**, of a vocabulary of 128k ids: a dense step takes 0.628 ms, a sparse one over 256 ids 0.051 ms, and both
take the same where all ids are allowed (claim 1). Over 256 steps 35% are refined, amortized is 2.4 times as fast as
full, and saves 94.5 ms (claim 2). Over 1,200 steps dense has 6.660 and sparse 1.060 times the oracle's loss (claim 3).

**Inferred** from that: sparse takes 0.050 + 0.578·K/|V| ms; full takes what dense takes; amortized takes 0.259 ms on
average, so that its exit lies at 9.6% of a step: f + 0.35·(1 − f) = 0.259/0.628; losses are λ = 0.5 times the time with
no loss of quality, and K is log-uniform on 1..|V|. So sparse has a loss of 0.0496, which is 1.060 times an oracle's if
that saves 0.0056 ms a step by the third arm, which therefore can not take 0.259 ms wherever K is large: the margin must
fall as K grows.

**Chosen**: the margin of a step is u^(1/g) with u uniform on 0..1, so that it is below τ with probability τ^g, and g
falls linearly with x = log K / log |V|. Its two numbers are fitted to the two figures that are left, 35% refined at
τ = 0.5 and 1.060. Then amortized is the best arm from K = 0.55·|V| on, which are 5% of the steps; the paper's router
took it in 8%.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

VOCABULARY = 128_000
ARMS = ("dense", "sparse", "amortized")
DENSE, SPARSE, AMORTIZED = range(3)
FULL_MS, OVERHEAD_MS = 0.628, 0.050
EXIT_SHARE = 0.096
THRESHOLD = 0.5
WEIGHT = 0.5
"""λ: what latency counts; quality is not lost."""
# g at K = 1 and at K = |V|.
_EXPONENTS = (2.3506, 0.8137)


def position(allowed: Floats) -> Floats:
    """x = log K / log |V|."""
    return np.log(allowed) / math.log(VOCABULARY)


def refined(allowed: Floats, threshold: float = THRESHOLD) -> Floats:
    """The probability that a step over K allowed ids is refined: that its margin is below the threshold."""
    low, high = _EXPONENTS
    share: Floats = threshold ** (low + (high - low) * position(allowed))
    return share


def margin_mean(allowed: Floats) -> Floats:
    """The mean margin of steps over K allowed ids."""
    low, high = _EXPONENTS
    exponent = low + (high - low) * position(allowed)
    return exponent / (exponent + 1)


def amortized(refine: Any, share: float = EXIT_SHARE) -> Any:
    """Milliseconds of an amortized step that is refined with this probability, leaving at `share` of a full step."""
    return FULL_MS * (share + (1 - share) * refine)


def latencies(allowed: Floats) -> Floats:
    """Expected milliseconds [T, 3] of the arms for K allowed ids [T]."""
    sparse = OVERHEAD_MS + (FULL_MS - OVERHEAD_MS) * allowed / VOCABULARY
    return np.stack([np.full_like(sparse, FULL_MS), sparse, amortized(refined(allowed))], 1)


@dataclass(frozen=True, eq=False)
class Steps:
    """T steps. `allowed`: K, whole numbers; `margins` in 0..1; `expected`: losses [T, 3]; `paid`: losses [T, 3] as a
    policy sees them: the expected ones, or with what chance makes of them."""

    allowed: Floats
    margins: Floats
    expected: Floats
    paid: Floats


def draw(count: int, seed: int, *, noise: float = 0.0, chance: bool = False, swap: bool = False) -> Steps:
    """Steps with K log-uniform on 1..|V|.

    `noise`: the deviation of a latency, as a share of it. `chance`: an amortized step pays for what its own margin
    makes it do, not for the expectation. `swap`: half way dense and sparse exchange what they cost.
    """
    random = np.random.default_rng(seed)
    allowed = np.clip(np.rint(VOCABULARY ** random.random(count)), 1, VOCABULARY)
    low, high = _EXPONENTS
    margins = random.random(count) ** (1 / (low + (high - low) * position(allowed)))
    expected = WEIGHT * latencies(allowed)
    paid = expected.copy()
    if chance:
        paid[:, AMORTIZED] = WEIGHT * amortized(margins < THRESHOLD)
    if swap:
        for losses in (expected, paid):
            losses[count // 2 :, [DENSE, SPARSE]] = losses[count // 2 :, [SPARSE, DENSE]]
    paid = paid * (1 + noise * random.standard_normal(paid.shape))
    return Steps(allowed, margins, expected, paid)


def prior(names: tuple[str, ...], refine: float) -> Floats:
    """What a planner thinks of the arms before the first step [3, d], for contexts of `routing/features.py`.

    Dense: one measured step. Sparse: K/|V| of that, by LLM-QP's roofline (section 2), which knows no overhead.
    Amortized: by where its exit lies, and a guess at how often it refines.
    """
    theta = np.zeros((3, len(names)))
    theta[DENSE, names.index("one")] = FULL_MS
    theta[SPARSE, names.index("share")] = FULL_MS
    theta[AMORTIZED, names.index("one")] = amortized(refine)
    return theta * WEIGHT * math.sqrt(len(names))

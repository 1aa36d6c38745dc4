"""LinUCB where the steps are: arms are chosen and losses learned on the device, so that no step waits for the host.

A program is a router. What it knows is a few hundred numbers, so it reads them anew at each step. Numbers are float64:
the updates add up over a whole run, and there are too few of them for their type to matter.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from benchmarks.routing.device_router import Bandits
from qpdsl.executor.kernels.triton.common import LAUNCH


@triton.jit
def arm_kernel(inverse, theta, contexts, arms, optimism, A: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr):
    """A program for each router: the first arm with the least xᵀθ + optimism · √(xᵀV⁻¹x)."""
    router = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D_PAD)
    there = d < D
    context = tl.load(contexts + router * D + d, mask=there, other=0.0)
    trust = tl.load(optimism)
    least = tl.full([1], float("inf"), tl.float64)
    chosen = tl.zeros([1], tl.int32)
    for arm in range(A):
        line = (router * A + arm) * D
        known = tl.load(inverse + (line + d)[:, None] * D + d[None, :], mask=there[:, None] & there[None, :], other=0.0)
        spread = tl.sum(tl.sum(known * context[None, :], 1) * context, 0)
        mean = tl.sum(tl.load(theta + line + d, mask=there, other=0.0) * context, 0)
        score = mean + trust * tl.sqrt(tl.abs(spread)) + tl.zeros([1], tl.float64)
        chosen = tl.where(score < least, arm, chosen)
        least = tl.minimum(score, least)
    tl.store(arms + router + tl.arange(0, 1), chosen)


@triton.jit
def loss_kernel(inverse, theta, contexts, arms, losses, A: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr):
    """A program for each router: V⁻¹ and θ of the arm that was taken, updated in place; nothing for an arm below 0."""
    router = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D_PAD)
    there = d < D
    arm = tl.load(arms + router)
    if arm >= 0:
        context = tl.load(contexts + router * D + d, mask=there, other=0.0)
        line = (router * A + arm) * D
        at = (line + d)[:, None] * D + d[None, :]
        both = there[:, None] & there[None, :]
        known = tl.load(inverse + at, mask=both, other=0.0)
        estimate = tl.load(theta + line + d, mask=there, other=0.0)
        # V⁻¹ is symmetric but for rounding; down its columns and along its rows the product is the same.
        along = tl.sum(known * context[None, :], 1)
        across = tl.sum(known * context[:, None], 0)
        gain = along / (1.0 + tl.sum(along * context, 0))
        error = tl.load(losses + router) - tl.sum(estimate * context, 0)
        tl.store(inverse + at, known - gain[:, None] * across[None, :], mask=both)
        tl.store(theta + line + d, estimate + error * gain, mask=there)


def choose(bandits: Bandits, contexts: torch.Tensor, optimism: torch.Tensor) -> torch.Tensor:
    """The arms int32 [R] for `contexts` float64 [R, d], contiguous; of equal ones the first.

    `optimism` float64 [1]: −β, or β for LinUCB as LLM-QP prints it. Twin: `choose` of `device_router.py`.
    """
    routers, count, features = bandits.theta.shape
    arms = torch.empty(routers, dtype=torch.int32, device=contexts.device)
    arm_kernel[(routers,)](
        bandits.inverse,
        bandits.theta,
        contexts,
        arms,
        optimism,
        A=count,
        D=features,
        D_PAD=triton.next_power_of_2(features),
        num_warps=1,
        **LAUNCH,
    )
    return arms


def learn(bandits: Bandits, contexts: torch.Tensor, arms: torch.Tensor, losses: torch.Tensor) -> None:
    """Learns `losses` float64 [R] of the `arms` int32 [R] that were taken; below 0 none was.

    `contexts` float64 [R, d], contiguous. Changes `bandits`. Twin: `learn` of `device_router.py`.
    """
    routers, count, features = bandits.theta.shape
    loss_kernel[(routers,)](
        bandits.inverse,
        bandits.theta,
        contexts,
        arms,
        losses,
        A=count,
        D=features,
        D_PAD=triton.next_power_of_2(features),
        num_warps=1,
        **LAUNCH,
    )

"""LinUCB of `executor/routing` on the device of a step: Triton kernels, or their torch twins. Nothing waits for it.

    arms = choose(bandits, contexts, optimism)
    learn(bandits, contexts, arms, losses)

A step's losses may be given while later steps run: what is learned counts from the next `choose` on.
"""

from __future__ import annotations

import torch

from qpdsl.executor.kernels.data.bandits import Bandits
from qpdsl.executor.kernels.paged_attention import on_device
from qpdsl.executor.kernels.plain import lin_ucb_twins


def choose(bandits: Bandits, contexts: torch.Tensor, optimism: torch.Tensor) -> torch.Tensor:
    """The arms int32 [R] of R independent routers for `contexts` float64 [R, d], contiguous; of equal ones the first.

    `optimism` float64 [1]: what the uncertainty √(xᵀV⁻¹x) counts: −β, or β for LinUCB as LLM-QP prints it.
    """
    if not on_device(contexts):
        return lin_ucb_twins.choose(bandits, contexts, optimism)
    from qpdsl.executor.kernels.triton import lin_ucb_kernels

    return lin_ucb_kernels.choose(bandits, contexts, optimism)


def learn(bandits: Bandits, contexts: torch.Tensor, arms: torch.Tensor, losses: torch.Tensor) -> None:
    """Learns `losses` float64 [R] of the `arms` int32 [R] that were taken; below 0 a router learns nothing."""
    if not on_device(contexts):
        lin_ucb_twins.learn(bandits, contexts, arms, losses)
        return
    from qpdsl.executor.kernels.triton import lin_ucb_kernels

    lin_ucb_kernels.learn(bandits, contexts, arms, losses)

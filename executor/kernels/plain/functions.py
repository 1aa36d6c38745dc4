"""Functions of single numbers in float32 whose bits depend on neither the shape of a tensor nor the threads.

Torch's own round otherwise at the end of a thread's part; its exponentials and logarithms do not.
"""

from __future__ import annotations

import torch

# Above it, ln(1 + e^x) is x, as in torch.
_LINEAR = 20.0


def sigmoid(values: torch.Tensor) -> torch.Tensor:
    return 1.0 / (1.0 + torch.exp(-values))


def silu(values: torch.Tensor) -> torch.Tensor:
    return values / (1.0 + torch.exp(-values))


def softplus(values: torch.Tensor) -> torch.Tensor:
    """ln(1 + e^x)."""
    return torch.where(values > _LINEAR, values, torch.log1p(torch.exp(values.clamp(max=_LINEAR))))

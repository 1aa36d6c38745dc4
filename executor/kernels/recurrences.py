"""What layers compute over the tokens of a sequence one after the other, with a state in between (`data/states.py`).

Every class prepares a layer's constants once and then takes the rows of a step. A token's bits depend on the tokens
before it in its sequence alone: not on how these were cut into steps and segments, nor on other sequences, nor on the
number of threads. On a CPU the code is compiled (`llvm/recurrence.py`); where it cannot be, torch computes the same
(`plain/recurrences.py`).
"""

from __future__ import annotations

import torch

from qpdsl.executor.kernels.data.states import StatePart, StateStep
from qpdsl.executor.kernels.plain import recurrences


class ShortConvolution:
    """A causal convolution of each channel by itself, over K neighbouring tokens.

    The products of a token are added in the order of time, in float32, and rounded once.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, activated: bool = False
    ) -> None:
        """`weight` [C, 1, K] as `torch.nn.Conv1d` has it, `bias` [C]; `activated`: SiLU comes after it."""
        self._weight = weight.detach()[:, 0].t().float().contiguous()
        self._bias = None if bias is None else bias.detach().float().contiguous()
        self._activated = activated
        self.part = StatePart("conv", (self._weight.shape[0] - 1, self._weight.shape[1]), dtype)

    def __call__(self, rows: torch.Tensor, layer: int, step: StateStep) -> torch.Tensor:
        """Convolves `rows` [T, C], in the type of the part that it keeps: [T, C]; rows of no segment give zeros."""
        kept = step.rows.part(layer, self.part.name)
        return recurrences.convolved(rows, self._weight, self._bias, self._activated, kept, step.segments)

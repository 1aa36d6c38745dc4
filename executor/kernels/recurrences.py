"""What layers compute over the tokens of a sequence one after the other, with a state in between (`data/states.py`).

Each class here is one such computation; it has the `part` that a layer keeps, and takes the rows of a step.
A token's bits depend on the tokens before it in its sequence alone: not on how these were cut into steps and segments,
nor on other sequences, nor on the number of threads. On a CPU the code is compiled (`llvm/recurrence.py`); where it
cannot be, torch computes the same (`plain/recurrences.py`). Rows of no segment give zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from qpdsl.executor.kernels.data.states import StatePart, StateStep
from qpdsl.executor.kernels.plain import recurrences

if TYPE_CHECKING:
    from qpdsl.executor.kernels.llvm.recurrence import StepKernel

# Columns of a matrix that lie together: a block of them fits in a core's nearest cache.
_COLUMNS = 32


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
        taps, channels = self._weight.shape
        self.part = StatePart("conv", (taps - 1, channels), dtype)
        self._zeros = torch.zeros(channels, dtype=dtype)

        def compiled() -> StepKernel:
            from qpdsl.executor.kernels.llvm.recurrence import ConvolutionShape, convolution

            return convolution(ConvolutionShape(channels, taps, bias is not None, activated, dtype))

        self._kernel = _compiled(compiled)

    def __call__(self, rows: torch.Tensor, layer: int, step: StateStep) -> torch.Tensor:
        """Convolves `rows` [T, C], in the type of the part that it keeps: [T, C]."""
        kept = step.rows.part(layer, self.part.name)
        if self._kernel is None:
            return recurrences.convolved(rows, self._weight, self._bias, self._activated, kept, step.segments)
        rows, out = _close(rows), _outputs(rows, step)
        addresses = self._weight, self._weight if self._bias is None else self._bias, self._zeros, out
        numbers = rows.data_ptr(), rows.stride(0), *(tensor.data_ptr() for tensor in addresses)
        self._kernel(numbers, len(rows), kept, step)
        return out


class MatrixState:
    """S ← a·S + k⊗u and o = Sᵀq for each head, where u is v, or β·(v - a·Sᵀk) by the delta rule; S is float32.

    Linear attention with decay (Katharopoulos et al., 2020; Dao and Gu, 2024), and the gated delta rule (Yang et al.,
    2024). A value head has the key head of its number, divided by the value heads that share one.
    """

    def __init__(
        self, key_heads: int, value_heads: int, key_dim: int, value_dim: int, *, corrects: bool, by_row: bool = False
    ) -> None:
        """`corrects`: the delta rule; `by_row`: each row of S has a decay a of its own."""
        columns = _COLUMNS if value_dim % _COLUMNS == 0 else value_dim
        shape = (value_heads, value_dim // columns, key_dim, columns)
        self.part = StatePart("recurrent", shape, torch.float32)

        def compiled() -> StepKernel:
            from qpdsl.executor.kernels.llvm.recurrence import MatrixShape, matrix

            return matrix(MatrixShape(key_heads, value_heads, key_dim, value_dim, columns, by_row, corrects))

        self._kernel = _compiled(compiled)

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        decay: torch.Tensor,
        beta: torch.Tensor | None,
        layer: int,
        step: StateStep,
    ) -> torch.Tensor:
        """Takes `query`, `key` [T, Hk, dk], `value` [T, Hv, dv], `decay` [T, Hv] or by row [T, Hv, dk], `beta` [T, Hv].

        All are float32. Returns o [T, Hv, dv]. `beta` is None without the delta rule.
        """
        kept = step.rows.part(layer, self.part.name)
        if self._kernel is None:
            return recurrences.matrices(query, key, value, decay, beta, kept, step.segments)
        query, key, value = (_close(part) for part in (query, key, value))
        decay = decay.contiguous()
        beta = decay if beta is None else beta.contiguous()
        out = _outputs(value, step)
        strided = [number for part in (query, key, value) for number in (part.data_ptr(), part.stride(0))]
        numbers = (*strided, decay.data_ptr(), beta.data_ptr(), out.data_ptr())
        self._kernel(numbers, len(value), kept, step)
        return out


class SelectiveState:
    """s ← e^(A·r)·s + B·u and o = Σ C·s for each of I channels, over its N numbers s; float32.

    The selective scan of Mamba (Gu and Dao, 2023), with N = 1 also a gated linear recurrence (De et al., 2024).
    """

    def __init__(self, logarithm: torch.Tensor) -> None:
        """`logarithm` [I, N]: A."""
        self._logarithm = logarithm.detach().t().float().contiguous()
        size, channels = self._logarithm.shape
        self.part = StatePart("recurrent", (size, channels), torch.float32)

        def compiled() -> StepKernel:
            from qpdsl.executor.kernels.llvm.recurrence import SelectiveShape, selective

            return selective(SelectiveShape(channels, size))

        self._kernel = _compiled(compiled)

    def __call__(
        self,
        rate: torch.Tensor,
        update: torch.Tensor,
        into: torch.Tensor,
        out_of: torch.Tensor,
        layer: int,
        step: StateStep,
    ) -> torch.Tensor:
        """Takes `rate` r and `update` u [T, I], `into` B and `out_of` C [T, N], all float32. Returns o [T, I]."""
        kept = step.rows.part(layer, self.part.name)
        if self._kernel is None:
            return recurrences.selected(self._logarithm, rate, update, into, out_of, kept, step.segments)
        rate, update, into, out_of = rate.contiguous(), update.contiguous(), _close(into), _close(out_of)
        out = _outputs(update, step)
        addresses = (part.data_ptr() for part in (self._logarithm, rate, update))
        strided = [number for part in (into, out_of) for number in (part.data_ptr(), part.stride(0))]
        self._kernel((*addresses, *strided, out.data_ptr()), len(update), kept, step)
        return out


def _compiled(compile: Callable[[], StepKernel]) -> StepKernel | None:
    try:
        # The compiler need not be installed where other kernels run.
        return compile()
    except (ImportError, LookupError):
        return None


def _close(rows: torch.Tensor) -> torch.Tensor:
    """Rows [T, ...], each of which lies in memory without gaps."""
    size = 1
    for axis in range(rows.dim() - 1, 0, -1):
        if rows.shape[axis] > 1 and rows.stride(axis) != size:
            return rows.contiguous()
        size *= rows.shape[axis]
    return rows


def _outputs(like: torch.Tensor, step: StateStep) -> torch.Tensor:
    """Where a step's rows go to, in the shape and type of `like`."""
    written = sum(segment.count for segment in step.segments)
    make = torch.empty if written == len(like) else torch.zeros
    return make(like.shape, dtype=like.dtype)

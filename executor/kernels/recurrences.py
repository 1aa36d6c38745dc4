"""What layers compute over the tokens of a sequence one after the other, with a state in between (`data/states.py`).

Each class here is one such computation; it has the `part` that a layer keeps, and takes the rows of a step.
A token's bits depend on the tokens before it in its sequence alone: not on how these were cut into steps and segments,
nor on other sequences, nor on the number of threads. On a CPU the code is compiled (`llvm/recurrence.py`); where it
cannot be, torch computes the same (`plain/recurrences.py`). Rows of no segment give zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeVar

import torch

from qpdsl.executor.kernels.data.states import StatePart, StateStep
from qpdsl.executor.kernels.plain import recurrences

if TYPE_CHECKING:
    from qpdsl.executor.kernels.llvm.gates import RowKernel
    from qpdsl.executor.kernels.llvm.recurrence import StepKernel

# Columns of a matrix that lie together: a block of them fits in a core's nearest cache.
_COLUMNS = 32
# Added to the sum of squares of a query and of a key.
_EPSILON = 1e-6


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

        self._kernel = _late(compiled)

    def __call__(self, rows: torch.Tensor, layer: int, step: StateStep) -> torch.Tensor:
        """Convolves `rows` [T, C]: [T, C] in the type of the part that it keeps."""
        rows = rows.to(self.part.dtype)
        kept = step.rows.part(layer, self.part.name)
        if (kernel := self._kernel()) is None:
            return recurrences.convolved(rows, self._weight, self._bias, self._activated, kept, step.segments)
        rows, out = _close(rows), _outputs(rows, step)
        addresses = self._weight, self._weight if self._bias is None else self._bias, self._zeros, out
        numbers = rows.data_ptr(), rows.stride(0), *(tensor.data_ptr() for tensor in addresses)
        kernel(numbers, len(rows), kept, step)
        return out


class MatrixState:
    """S ← a·S + k⊗u and o = Sᵀq for each head, where u is v, or β·(v - a·Sᵀk) by the delta rule; S is float32.

    Linear attention with decay (Katharopoulos et al., 2020; Dao and Gu, 2024), and the gated delta rule (Yang et al.,
    2024). A value head has the key head of its number, divided by the value heads that share one.
    """

    def __init__(
        self,
        heads: tuple[int, int],
        dims: tuple[int, int],
        dtype: torch.dtype = torch.float32,
        *,
        corrects: bool,
        by_row: bool = False,
    ) -> None:
        """`heads` Hk, Hv and `dims` dk, dv; `dtype` of v; `corrects`: the delta rule.

        `by_row`: each row of S has a decay a of its own.
        """
        (_, value_heads), (key_dim, value_dim) = heads, dims
        columns = _COLUMNS if value_dim % _COLUMNS == 0 else value_dim
        shape = (value_heads, value_dim // columns, key_dim, columns)
        self._dtype = dtype
        self.part = StatePart("recurrent", shape, torch.float32)

        def compiled() -> StepKernel:
            from qpdsl.executor.kernels.llvm.recurrence import MatrixShape, matrix

            return matrix(MatrixShape(*heads, *dims, columns, by_row, corrects, dtype))

        self._kernel = _late(compiled)

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

        All but values are float32. Returns o float32 [T, Hv, dv]. `beta` is None without the delta rule.
        """
        kept = step.rows.part(layer, self.part.name)
        if (kernel := self._kernel()) is None:
            return recurrences.matrices(query, key, value, decay, beta, kept, step.segments)
        query, key, value = _close(query), _close(key), _close(value.to(self._dtype))
        decay = decay.contiguous()
        beta = decay if beta is None else beta.contiguous()
        out = _outputs(value, step, torch.float32)
        strided = [number for part in (query, key, value) for number in (part.data_ptr(), part.stride(0))]
        numbers = (*strided, decay.data_ptr(), beta.data_ptr(), out.data_ptr())
        kernel(numbers, len(value), kept, step)
        return out


class SelectiveState:
    """s ← e^(A·r)·s + B·u and o = Σ C·s for each of I channels, over its N numbers s; float32.

    The selective scan of Mamba (Gu and Dao, 2023), with N = 1 also a gated linear recurrence (De et al., 2024).
    """

    def __init__(self, logarithm: torch.Tensor, name: str = "recurrent") -> None:
        """`logarithm` [I, N]: A; `name`: of its part."""
        self._logarithm = logarithm.detach().t().float().contiguous()
        size, channels = self._logarithm.shape
        self.part = StatePart(name, (size, channels), torch.float32)

        def compiled() -> StepKernel:
            from qpdsl.executor.kernels.llvm.recurrence import SelectiveShape, selective

            return selective(SelectiveShape(channels, size))

        self._kernel = _late(compiled)

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
        if (kernel := self._kernel()) is None:
            return recurrences.selected(self._logarithm, rate, update, into, out_of, kept, step.segments)
        rate, update, into, out_of = rate.contiguous(), update.contiguous(), _close(into), _close(out_of)
        out = _outputs(update, step)
        addresses = (part.data_ptr() for part in (self._logarithm, rate, update))
        strided = [number for part in (into, out_of) for number in (part.data_ptr(), part.stride(0))]
        kernel((*addresses, *strided, out.data_ptr()), len(update), kept, step)
        return out


class DeltaGates:
    """What the delta rule takes: queries and keys of one length, decays e^(rate·softplus(x + bias)), β by a sigmoid."""

    def __init__(
        self,
        pairs: int,
        dim: int,
        writes: int,
        bias: torch.Tensor,
        rate: torch.Tensor,
        dtype: torch.dtype,
        largest: float = 1.0,
        bound: float | None = None,
        *,
        rounds: bool = False,
    ) -> None:
        """`pairs` Hk of `dim` dk, `writes` Hv; `bias` and `rate` [n]; `dtype` comes in; `largest` β.

        A query's length is dk^-0.5, a key's 1. With a `bound` decays are e^(bound·sigmoid(rate·(x + bias))). `rounds`:
        their logarithms to `dtype`.
        """
        self._pairs, self._dim, self._dtype = pairs, dim, dtype
        self._bias, self._rate = (part.detach().float().flatten().contiguous() for part in (bias, rate))
        self._factors = torch.tensor([dim**-0.5, 1.0, largest, _EPSILON, bound or 0.0])
        self._rules = bound is not None, rounds
        decays = len(self._rate)

        def compiled() -> RowKernel:
            from qpdsl.executor.kernels.llvm.gates import GatesShape, gates

            return gates(GatesShape(pairs, dim, writes, decays, dtype, bound is not None, rounds))

        self._kernel = _late(compiled)

    def __call__(
        self, joined: torch.Tensor, write: torch.Tensor, inputs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Takes `joined` [T, 2·Hk·dk or more], queries and then keys, `write` [T, Hv] and `inputs` [T, n].

        Returns queries and keys [T, 2, Hk, dk], decays [T, n] and β [T, Hv], float32.
        """
        shape = len(joined), 2, self._pairs, self._dim
        if (kernel := self._kernel()) is None:
            joined = joined[:, : 2 * self._pairs * self._dim].view(shape)
            return recurrences.delta_gates(joined, write, inputs, self._bias, self._rate, self._factors, *self._rules)
        given = [_close(part.to(self._dtype)) for part in (joined, write, inputs)]
        out = torch.empty(shape), torch.empty(inputs.shape), torch.empty(write.shape)
        strided = [number for part in given for number in (part.data_ptr(), part.stride(0))]
        addresses = [part.data_ptr() for part in (self._bias, self._rate, self._factors, *out)]
        kernel((*strided, *addresses), len(joined))
        return out


class GatedNorm:
    """The RMS norm of each of some groups of a row, with a gate before or after it."""

    def __init__(
        self,
        weight: torch.Tensor,
        groups: int,
        size: int,
        epsilon: float,
        dtype: torch.dtype,
        activation: Literal["silu", "sigmoid"] = "silu",
        *,
        gate_first: bool = False,
        rounds_input: bool = False,
        rounds_normed: bool = False,
    ) -> None:
        """`weight` [size] for all groups, or [groups · size]; `activation`: of the gate.

        `rounds_input`, `rounds_normed`: to `dtype` before it, and after it, with and without the weight.
        """
        wide = weight.detach().float()
        self._weight = (wide.view(groups, -1) if len(wide) == size * groups else wide.expand(groups, -1)).contiguous()
        self._rules = (activation, gate_first, rounds_input, rounds_normed)
        self._epsilon, self.dtype = torch.tensor([epsilon]), dtype

        def compiled() -> RowKernel:
            from qpdsl.executor.kernels.llvm.gates import NormShape, gated_norm

            sigmoid = activation == "sigmoid"
            return gated_norm(NormShape(groups, size, dtype, sigmoid, gate_first, rounds_input, rounds_normed))

        self._kernel = _late(compiled)

    def __call__(self, values: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Takes `values` float32 [T, groups, size], contiguous, which are lost, and `gate` [T, groups · size].

        Returns [T, groups · size].
        """
        if (kernel := self._kernel()) is None:
            gate = gate.view(-1, *self._weight.shape)
            values = values.view(gate.shape)
            return recurrences.gated_norm(values, gate, self._weight, self._epsilon.item(), *self._rules).flatten(1)
        gate = _close(gate.to(self.dtype))
        out = torch.empty(gate.shape, dtype=gate.dtype)
        addresses = [part.data_ptr() for part in (self._weight, self._epsilon, out)]
        kernel((values.data_ptr(), gate.data_ptr(), gate.stride(0), *addresses), len(gate))
        return out


_Kernel = TypeVar("_Kernel")


def _late(compile: Callable[[], _Kernel]) -> Callable[[], _Kernel | None]:
    """Compiles when a kernel is first asked for, so that what a layer keeps can be told without one; None for none."""

    @cache
    def kernel() -> _Kernel | None:
        try:
            # The compiler need not be installed where other kernels run.
            return compile()
        except (ImportError, LookupError):
            return None

    return kernel


def _close(rows: torch.Tensor) -> torch.Tensor:
    """Rows [T, ...], each of which lies in memory without gaps."""
    size = 1
    for axis in range(rows.dim() - 1, 0, -1):
        if rows.shape[axis] > 1 and rows.stride(axis) != size:
            return rows.contiguous()
        size *= rows.shape[axis]
    return rows


def _outputs(like: torch.Tensor, step: StateStep, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Where a step's rows go to, in the shape of `like`, and in its type if there is none given."""
    written = sum(segment.rows for segment in step.segments)
    make = torch.empty if written == len(like) else torch.zeros
    return make(like.shape, dtype=dtype or like.dtype)

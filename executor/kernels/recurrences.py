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
    from qpdsl.executor.kernels.llvm.delta import DeltaKernel
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
    """S ← a·S + k⊗v and o = Sᵀq for each head; S is float32.

    Linear attention with decay (Katharopoulos et al., 2020; Dao and Gu, 2024). A value head has the key head of its
    number, divided by the value heads that share one.
    """

    def __init__(self, heads: tuple[int, int], dims: tuple[int, int]) -> None:
        """`heads` Hk, Hv and `dims` dk, dv."""
        self.part = _matrices(heads[1], dims)
        columns = self.part.shape[-1]

        def compiled() -> StepKernel:
            from qpdsl.executor.kernels.llvm.recurrence import MatrixShape, matrix

            return matrix(MatrixShape(*heads, *dims, columns))

        self._kernel = _late(compiled)

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        decay: torch.Tensor,
        layer: int,
        step: StateStep,
    ) -> torch.Tensor:
        """Takes `query`, `key` [T, Hk, dk], `value` [T, Hv, dv] and `decay` a [T, Hv]; all is float32.

        Returns o [T, Hv, dv].
        """
        kept = step.rows.part(layer, self.part.name)
        if (kernel := self._kernel()) is None:
            return recurrences.matrices(query, key, value, decay, None, kept, step.segments)
        query, key, value, decay = _close(query), _close(key), _close(value), decay.contiguous()
        out = _outputs(value, step)
        strided = [number for part in (query, key, value) for number in (part.data_ptr(), part.stride(0))]
        kernel((*strided, decay.data_ptr(), out.data_ptr()), len(value), kept, step)
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


class GatedDelta:
    """The gated delta rule (Yang et al., 2024) between the projections of a layer.

    A short convolution and SiLU make queries, keys and values, of which queries get length dk^-0.5, and keys 1. Then,
    for each value head, S ← a·S + k⊗u and o = Sᵀq with u = β·(v - a·Sᵀk), where a = e^(rate·softplus(x + bias)) and β
    comes of a sigmoid. Outputs are normed by head, and multiplied by their gates. S is float32.
    """

    def __init__(
        self,
        heads: tuple[int, int],
        dims: tuple[int, int],
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        decay: tuple[torch.Tensor, torch.Tensor],
        norm: torch.Tensor,
        epsilon: float,
        dtype: torch.dtype,
        *,
        activation: Literal["silu", "sigmoid"] = "silu",
        largest: float = 1.0,
        bound: float | None = None,
        rounds: bool = False,
        rounds_normed: bool = False,
    ) -> None:
        """`heads` Hk, Hv and `dims` dk, dv; `weight` [C, 1, K] and `bias` [C] of the convolution, in the order q, k, v.

        `decay`: bias and rate, [Hv], or [Hv · dk] where each row of S decays by itself; with a `bound`, a is
        e^(bound·sigmoid(rate·(x + bias))). `norm` [dv]; `activation`: of the gates; `dtype` comes in and goes out;
        `largest` β. `rounds`, `rounds_normed`: logarithms of a, and outputs before and after the weight, to `dtype`.
        """
        (key_heads, value_heads), (key_dim, value_dim) = heads, dims
        self._heads, self._dims, self._dtype = heads, dims, dtype
        self._weight = weight.detach()[:, 0].t().float().contiguous()
        self._bias = None if bias is None else bias.detach().float().contiguous()
        taps, channels = self._weight.shape
        matrix = _matrices(value_heads, dims)
        self.parts = StatePart("conv", (taps - 1, channels), dtype), matrix
        decay_bias, rate = (part.detach().float().flatten().contiguous() for part in decay)
        self._by_row = len(rate) > value_heads
        # Of what it takes, in its order.
        self.widths = channels, value_heads * value_dim, value_heads, len(rate)
        self._rules, self._norm_rules = (bound is not None, rounds), (activation, False, True, rounds_normed)
        self._given = {
            "weight": self._weight,
            "bias": self._weight if self._bias is None else self._bias,
            "zeros": torch.zeros(taps - 1, channels, dtype=dtype),
            "decay_bias": decay_bias,
            "rate": rate,
            "factors": torch.tensor([key_dim**-0.5, 1.0, largest, _EPSILON, bound or 0.0, epsilon]),
            "norm": norm.detach().float().contiguous(),
        }

        def compiled() -> DeltaKernel:
            from qpdsl.executor.kernels.llvm.delta import CONSTANTS, DeltaKernel, DeltaShape
            from qpdsl.executor.kernels.llvm.gates import NormShape

            self.constants = torch.tensor([self._given[name].data_ptr() for name in CONSTANTS])
            gated = NormShape(value_heads, value_dim, dtype, activation == "sigmoid", *self._norm_rules[1:])
            return DeltaKernel(
                DeltaShape(
                    *(key_heads, key_dim, matrix.shape[-1], taps, bias is not None, self._by_row),
                    *(bound is not None, rounds, gated),
                )
            )

        # None where there are no vectors for it.
        self.kernel = _late(compiled)

    def __call__(
        self,
        joined: torch.Tensor,
        gate: torch.Tensor,
        write: torch.Tensor,
        inputs: torch.Tensor,
        layer: int,
        step: StateStep,
    ) -> torch.Tensor:
        """Takes `joined` [T, C], queries, keys and values, `gate` [T, Hv · dv], `write` [T, Hv] before its sigmoid.

        And the `inputs` x of the decays, [T, Hv] or [T, Hv · dk]. Returns [T, Hv · dv].
        """
        given = [part.to(self._dtype) for part in (joined, gate, write, inputs)]
        kept = [step.rows.part(layer, part.name) for part in self.parts]
        if (kernel := self.kernel()) is None:
            return self._by_torch(given, kept, step)
        given = [_close(part) for part in given]
        parts = [*given, _outputs(given[1], step)]
        strided = [number for part in parts for number in (part.data_ptr(), part.stride(0))]
        states = [part.data_ptr() for part in kept]
        kernel((self.constants.data_ptr(), *strided, *states), len(joined), step)
        return parts[-1]

    def _by_torch(self, given: list[torch.Tensor], kept: list[torch.Tensor], step: StateStep) -> torch.Tensor:
        joined, gate, write, inputs = given
        (key_heads, value_heads), (key_dim, value_dim) = self._heads, self._dims
        joined = recurrences.convolved(joined, self._weight, self._bias, True, kept[0], step.segments)
        pairs, values = joined.tensor_split((2 * key_heads * key_dim,), dim=1)
        factors = self._given["factors"]
        query_key, decay, beta = recurrences.delta_gates(
            pairs.view(len(pairs), 2, key_heads, key_dim),
            *(write, inputs, self._given["decay_bias"], self._given["rate"], factors[:5], *self._rules),
        )
        query, key = query_key.unbind(1)
        if self._by_row:
            decay = decay.view(-1, value_heads, key_dim)
        values = values.reshape(-1, value_heads, value_dim)
        out = recurrences.matrices(query, key, values, decay, beta, kept[1], step.segments)
        weight = self._given["norm"].expand(value_heads, -1)
        gate = gate.reshape(out.shape)
        return recurrences.gated_norm(out, gate, weight, factors[5].item(), *self._norm_rules).flatten(1)


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


def _matrices(heads: int, dims: tuple[int, int]) -> StatePart:
    """A matrix of `dims` for each head, by blocks of columns."""
    key_dim, value_dim = dims
    columns = _COLUMNS if value_dim % _COLUMNS == 0 else value_dim
    return StatePart("recurrent", (heads, value_dim // columns, key_dim, columns), torch.float32)


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

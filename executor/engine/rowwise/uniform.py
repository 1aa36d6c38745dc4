"""Functions of single numbers, and products with small weights, whose rounding does not depend on the number of rows.

Torch computes sigmoid, SiLU, GELU and some others in vectors, and what is left over at the end of a thread's part by
other code, which rounds otherwise. So the numbers are given to it in pieces that are whole vectors, and too small to be
parted among threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

from qpdsl.executor.kernels.data.weights import FLOATS, FloatWeight
from qpdsl.executor.kernels.linear import PackedLinear

# Numbers that torch's loops take at once at most: two vectors of AVX-512 in bfloat16.
_LANES = 64
# Torch gives no part of so few numbers to another thread.
_PIECE = 1 << 14
# Products of a row and a weight that are held at once.
_PRODUCTS = 1 << 20
# Powers that are computed by multiplying and dividing, and so alike everywhere.
EXACT_POWERS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)

_FUNCTIONS: dict[Any, str] = {
    function: name
    for name, functions in {
        "sigmoid": (torch.sigmoid, torch.Tensor.sigmoid, torch.special.expit),
        "silu": (torch.nn.functional.silu, torch._C._nn.silu),
        "gelu": (torch.nn.functional.gelu,),
        "softplus": (torch.nn.functional.softplus,),
        "elu": (torch.nn.functional.elu, torch._C._nn.elu),
        "celu": (torch.nn.functional.celu, torch.celu),
        "selu": (torch.nn.functional.selu, torch.selu),
        "mish": (torch.nn.functional.mish, torch._C._nn.mish),
        "log_sigmoid": (torch.nn.functional.logsigmoid,),
        "pow": (torch.pow, torch.Tensor.pow, torch.Tensor.__pow__),
    }.items()
    for function in functions
}
# By the names of torch's operations: what `Uniform` computes in whole vectors.
UNIFORM = frozenset(_FUNCTIONS.values()) | {"log_sigmoid_forward"}


class Uniform(TorchFunctionMode):
    """While it is entered, such functions, and `linear` with a parameter of a module, give each row its own bits."""

    def __init__(self) -> None:
        super().__init__()
        self.active = False
        # Whether torch is called from here.
        self.computing = False
        self._packed: dict[int, tuple[torch.nn.Parameter, PackedLinear]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FUNCTIONS and _is_meant(func, args, kwargs):
            return self._alone(lambda: in_whole_vectors(func, args[0], args[1:], kwargs))
        if func is torch.nn.functional.linear:
            return self._alone(lambda: self._linear(*args, **kwargs))
        return func(*args, **kwargs)

    def around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A module's `forward` with this entered."""

        def uniform_forward(*args: Any, **kwargs: Any) -> Any:
            if self.active:
                return forward(*args, **kwargs)
            self.active = True
            try:
                with self:
                    return forward(*args, **kwargs)
            finally:
                self.active = False

        return uniform_forward

    def _alone(self, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        self.computing = True
        try:
            return compute()
        finally:
            self.computing = False

    def _linear(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not isinstance(weight, torch.nn.Parameter) or weight.dtype not in FLOATS:
            return sum_of_products(input, weight, bias)
        if id(weight) not in self._packed:
            # The parameter is kept too, so that no other one gets its number.
            self._packed[id(weight)] = weight, PackedLinear(FloatWeight(weight.detach()), bias)
        packed: torch.Tensor = self._packed[id(weight)][1](input)
        return packed


def _is_meant(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the call computes new floats of a tensor, in a way that needs whole vectors."""
    if not args or not isinstance(args[0], torch.Tensor) or not args[0].is_floating_point():
        return False
    if kwargs.get("inplace") or kwargs.get("out") is not None:
        return False
    if _FUNCTIONS[func] != "pow":
        return True
    exponent = args[1] if len(args) > 1 else kwargs.get("exponent")
    return isinstance(exponent, int | float) and exponent not in EXACT_POWERS


def in_whole_vectors(
    function: Callable[..., torch.Tensor], values: torch.Tensor, others: tuple[Any, ...] = (), named: Any = None
) -> torch.Tensor:
    """`function` of single numbers over `values` of any shape, whose bits depend on neither shape nor threads."""
    named = named or {}
    count = values.numel()
    if count <= _PIECE and count % _LANES == 0 and values.is_contiguous():
        return function(values, *others, **named)
    flat = values.reshape(-1)
    if count % _LANES:
        flat = pad(flat, (0, -count % _LANES))
    parts = [function(part, *others, **named) for part in torch.split(flat, _PIECE)]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return whole[:count].view(values.shape)


def sum_of_products(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x·Wᵀ + b of `rows` [..., in] and `weight` [out, in], in their dtype, each output a sum by itself in float32."""
    flat = rows.reshape(-1, rows.shape[-1]).float()
    wide = weight.float()
    out = torch.empty((len(flat), len(weight)), dtype=torch.float32)
    step = max(1, _PRODUCTS // max(1, weight.numel()))
    for begin in range(0, len(flat), step):
        part = flat[begin : begin + step]
        out[begin : begin + step] = (part[:, None, :] * wide).sum(dim=-1)
    if bias is not None:
        out += bias
    return out.to(rows.dtype).view(*rows.shape[:-1], len(weight))

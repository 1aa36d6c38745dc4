"""Looks at every operation that torch carries out in a forward, for those whose rounding may depend on other rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qpdsl.executor.engine.rowwise.uniform import EXACT_POWERS, UNIFORM, Uniform

# Operations by which each number of the result is rounded in one way, however many there are.
_MOVING = """
    _conj _local_scalar_dense _reshape_alias _to_copy _unsafe_index _unsafe_view alias all any arange argmax argsort
    as_strided bitwise_and bitwise_and_ bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift cat chunk clone
    constant_pad_nd contiguous copy copy_ detach embedding empty empty_like empty_strided eq equal expand expand_as fill
    fill_ flip floor floor_divide full full_like gather ge gt index index_put index_put_ index_select isfinite isin
    isinf isnan item le lift_fresh logical_and logical_not logical_or lt masked_fill masked_fill_ max min narrow ne
    new_empty new_full new_ones new_zeros nonzero one_hot ones ones_like permute remainder repeat reshape resolve_conj
    roll scalar_tensor scatter scatter_ select slice sort split split_with_sizes squeeze stack t to topk transpose tril
    triu triu_ type_as unbind unfold unsqueeze unsqueeze_ view view_as_complex view_as_real where zero_ zeros zeros_like
"""
_ROUNDING_ONCE = """
    abs abs_ add add_ amax amin clamp clamp_ clamp_max clamp_min complex div div_ hardtanh leaky_relu maximum minimum
    mul mul_ neg reciprocal relu relu6 relu_ round rsqrt rsub sgn sign sqrt square sub sub_ threshold
"""
# Computed in vectors up to the last number.
_IN_VECTORS = "cos erf exp exp2 expm1 log log1p polar sin tanh"
_SUMMING_ROWS = """
    _fused_rms_norm _log_softmax _softmax cumsum linalg_vector_norm logsumexp mean native_layer_norm norm prod rms_norm
    softmax std std_mean sum var var_mean
"""
_BY_THEMSELVES = frozenset(f"{_MOVING} {_ROUNDING_ONCE} {_IN_VECTORS} {_SUMMING_ROWS}".split())
# Products; those with an inner dimension of 1 round once.
_PRODUCTS = frozenset({"addmm", "baddbmm", "bmm", "mm", "mv", "dot", "addmv", "linear", "matmul", "einsum"})


@dataclass(frozen=True, slots=True)
class Finding:
    """An operation whose rounding may depend on other rows, and the module that called it."""

    operation: str
    module: torch.nn.Module


class Audit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """An audit of the modules of `root`, of which the `trusted` ones are known to compute rows by themselves."""

    def __init__(self, root: torch.nn.Module, trusted: Collection[torch.nn.Module], uniform: Uniform) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._findings: list[Finding] = []
        self._root, self._trusted, self._uniform = root, trusted, uniform
        self._running: list[torch.nn.Module] = []

    def of(self, run: Callable[[], object]) -> list[Finding]:
        """The findings in what `run` computes."""
        handles: list[Any] = []
        for module in self._root.modules():
            handles.append(module.register_forward_pre_hook(lambda module, inputs: self._running.append(module)))
            handles.append(module.register_forward_hook(lambda module, inputs, output: self._left()))
        try:
            # Inference mode would show operations that torch makes of others.
            with torch.inference_mode(False), torch.no_grad(), self:
                run()
        finally:
            for handle in handles:
                handle.remove()
        return self._findings

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        known = name in _BY_THEMSELVES or self._uniform.computing
        if not known and not any(module in self._trusted for module in self._running):
            exact = _is_outer(name, args) or (name == "pow" and _is_exact_power(args))
            if not exact:
                self._findings.append(Finding(name, self._running[-1] if self._running else self._root))
        return func(*args, **kwargs)

    def _left(self) -> None:
        self._running.pop()


def can_be_uniform(operation: str) -> bool:
    """Whether `Uniform` can compute it so that it depends on its own row only."""
    return operation in UNIFORM or operation in ("addmm", "mm", "linear")


def names(findings: Iterable[Finding]) -> list[str]:
    """For people: the operations, each with the module that called it."""
    return sorted({f"{finding.operation} in {type(finding.module).__name__}" for finding in findings})


def _is_outer(name: str, args: Any) -> bool:
    """Whether an operation is a product whose sums have a single part."""
    tensors = [part for part in args if isinstance(part, torch.Tensor)]
    return name in _PRODUCTS and name in ("bmm", "mm", "matmul") and tensors[0].shape[-1] == 1


def _is_exact_power(args: Any) -> bool:
    return len(args) > 1 and isinstance(args[1], int | float) and args[1] in EXACT_POWERS

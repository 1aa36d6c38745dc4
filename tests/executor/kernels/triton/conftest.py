"""Whether Triton's interpreter runs here at all, and products whose rows do not depend on each other on any machine."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def _working_interpreter(request: pytest.FixtureRequest) -> None:
    """Skips kernel tests where Triton before 3.8 meets numpy from 2.4 on, which refuses int() of its scalars."""
    if os.environ.get("TRITON_INTERPRET") != "1" or request.node.path.name == "test_compile.py":
        return
    import triton

    old = tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 8)
    if old and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip("the interpreter of this Triton does not run with this numpy")


@pytest.fixture
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has `tl.dot` and linear layers sum every row alike, whatever stands beside it, as a GPU's tensor cores do.

    The interpreter multiplies by BLAS, and BLAS takes other code for other shapes and for rows at an edge: on some
    processors that shows in the bits.
    """
    from triton.runtime import interpreter

    def dot(self: object, a: object, b: object, d: object, precision: object, imprecise: object) -> object:
        total = np.zeros(d.data.shape, dtype=d.data.dtype)  # type: ignore[attr-defined]
        left, right = (part.data.astype(total.dtype) for part in (a, b))  # type: ignore[attr-defined]
        for column in range(left.shape[-1]):
            total += left[..., :, column, None] * right[..., None, column, :]
        return interpreter.TensorHandle(total + d.data, d.dtype.scalar)  # type: ignore[attr-defined]

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        # A row alone would be summed by another loop of torch's than one of several.
        out = torch.stack([(weight * row).sum(dim=-1) for row in rows]).view(*x.shape[:-1], len(weight))
        return out if bias is None else out + bias

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
    monkeypatch.setattr(torch.nn.functional, "linear", linear)

"""Whether Triton's interpreter runs here at all."""

from __future__ import annotations

import os

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _working_interpreter(request: pytest.FixtureRequest) -> None:
    """Skips kernel tests where Triton before 3.8 meets numpy from 2.4 on, which refuses int() of its scalars."""
    if os.environ.get("TRITON_INTERPRET") != "1" or request.node.path.name == "test_compile.py":
        return
    import triton

    old = tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 8)
    if old and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip("the interpreter of this Triton does not run with this numpy")

"""What engines tell torch of the sums in the library's products."""

from __future__ import annotations

import pytest
import torch

from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine


@pytest.mark.parametrize("deterministic", [False, True])
def test_sums_are_float32_and_a_deterministic_engine_has_none_split(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    PagedEngine(EngineConfig(deterministic=deterministic))
    matmul = torch.backends.cuda.matmul
    for kind in ("bf16", "fp16"):
        assert getattr(matmul, f"allow_{kind}_reduced_precision_reduction") is False
        assert getattr(matmul, f"allow_{kind}_reduced_precision_reduction_split_k") is not deterministic

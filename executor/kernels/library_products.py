"""How cuBLAS may sum the products of a model, of which torch keeps one setting for the process."""

from __future__ import annotations

import os

import torch

# In KiB: so little that no sum is split for want of room to keep its parts (as in vLLM's batch-invariant mode).
_WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}


def sum_in_float32(*, whole: bool) -> None:
    """Has products of 16-bit numbers sum in float32, also where cuBLAS splits them by inputs (split-K).

    torch's default lets it add such parts as 16-bit numbers. `whole`: it splits no sum at all, so that the order in
    which a row is summed does not depend on what the device is given besides. Workspaces are made with the first
    product of a process, and stay as they are from then on.
    """
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = (False, not whole)
    matmul.allow_fp16_reduced_precision_reduction = (False, not whole)
    if whole:
        for name, value in _WORKSPACES.items():
            os.environ.setdefault(name, value)

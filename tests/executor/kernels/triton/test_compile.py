"""Every kernel compiles for a GPU, without one: the interpreter accepts code that the compiler does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytest.importorskip("triton")

# Bytes of shared memory that a thread block may have (CUDA C++ Programming Guide, compute capabilities).
SHARED_MEMORY = {"89": 99 * 1024, "90": 227 * 1024}
KERNELS = {"store_kernel", "decode_kernel", "merge_kernel", "prefill_kernel", "prefix_kernel", "sample_kernel"}
KERNELS |= {"dense_kernel", "sparse_kernel", "choose_kernel", "arm_kernel", "loss_kernel"}


@pytest.mark.parametrize("capability", sorted(SHARED_MEMORY))
def test_kernels_compile_and_fit(capability: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.executor.compile_kernels", capability],
        cwd=ROOT,
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert {name for _, name, _, _ in lines} >= KERNELS
    for _, name, shared, spilled in lines:
        assert int(shared) <= SHARED_MEMORY[capability], name
        # A few spilled registers cost nothing that can be measured; kilobytes do.
        assert int(spilled) <= 1024, name

"""The GPU benchmark's checking half runs anywhere; the rest says what it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]


def gpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "benchmarks/gpu.py", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the checks run on the device")
def test_checks_pass_in_the_interpreter() -> None:
    done = gpu("--interpret-check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| cascade | 4 | 4 |" in done.stdout
    assert "WRONG" not in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_so() -> None:
    done = gpu()
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
    assert done.stdout == ""

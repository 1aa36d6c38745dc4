"""The GPU benchmark's checking half runs anywhere; the rest says what it lacks."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from qpdsl.executor.kernels import paged

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


def test_the_engines_part_runs_through_the_twins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(paged, "_INTERPRETED", False)
    gpu_engine = importlib.import_module("gpu_engine")
    plan = gpu_engine.Plan("cpu", torch.float32, ("tiny",), ((2, 20),), 2, 1, ((2, 8, 4),), compiled=False)
    record = gpu_engine.run(tmp_path, plan=plan)
    assert [case["variant"] for case in record["decode"]] == ["eager", "graphs", "deterministic"]
    assert all(case["ms"] > 0 for case in record["decode"]) and record["generate"][0]["ratio"] > 0
    assert [check for check in record["checks"] if not check["passed"]] == []
    assert "| tiny | deterministic | 2 | 20 |" in record["markdown"]

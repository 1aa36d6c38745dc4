"""The GPU benchmark: its checks and its engine part run anywhere, on torch, triton and transformers alone.

A GPU's first minutes are dear: what fails, hangs or comes too late takes nothing else with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu import record as records
from benchmarks.gpu import run, tables

triton = pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]
# Of what the project depends on beside torch, triton, transformers and numpy, nothing can be found.
BARE = """
import json, sys
from importlib.machinery import PathFinder

ABSENT = {"lark", "llguidance", "llvmlite", "networkx", "pydantic", "click", "rich", "textual", "pygls", "math_verify",
          "matplotlib", "pytest", "hypothesis", "llama_cpp", "gguf"}

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else super().find_spec(name, path, target)

sys.meta_path[:] = [Bare if finder is PathFinder else finder for finder in sys.meta_path]
from benchmarks.gpu import engine, engine_checks, kernel_checks, kernels, record, run, tables
"""
CHECKS = """
sys.argv[1:] = ["--interpret-check"]
sys.exit(run.main())
"""
ENGINE = """
import torch
plan = engine.Plan("cpu", torch.float32, ("tiny",), ((2, 20),), 2, 1, ((2, 8, 4),), ("graphs", "deterministic"))
written = record.Record(None, float("inf"), tables.engine)
engine.run(written, plan)
print("RECORD", json.dumps(written.data))
"""


def bare(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", BARE + code]
    return subprocess.run(command, cwd=ROOT, env={**inherited, **environment}, capture_output=True, text=True)


def interpreter_runs() -> bool:
    """Triton before 3.8 calls int() of what numpy from 2.4 on refuses it for."""
    new = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 8)
    return new or bool(np.lib.NumpyVersion(np.__version__) < "2.4.0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the checks run on the device")
@pytest.mark.skipif(not interpreter_runs(), reason="the interpreter of this Triton does not run with this numpy")
def test_checks_pass_in_the_interpreter() -> None:
    done = bare(CHECKS, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| cascade | 4 | 4 |" in done.stdout
    assert "WRONG" not in done.stdout


def test_the_engines_part_runs_through_the_twins() -> None:
    done = bare(ENGINE)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout.partition("RECORD ")[2])
    assert (record["failed"], record["not_begun"]) == ([], [])
    assert [case["variant"] for case in record["decode"]] == ["graphs", "deterministic"]
    assert all(case["ms"] > 0 for case in record["decode"]) and record["generate"][0]["ratio"] > 0
    # Here torch's products stand in for the GPU's, and on some processors they sum in another order for other sizes.
    there = [check for check in record["checks"] if not check["check"].startswith("deterministic: the same bits")]
    assert there and [check for check in there if not check["passed"]] == []
    assert "| tiny | deterministic | 2 | 20 |" in record["markdown"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu.run", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
    assert done.stdout == "" and not list(tmp_path.iterdir())


def test_a_case_that_fails_is_noted_and_the_next_one_runs(tmp_path: Path) -> None:
    file = tmp_path / "gpu-engine.json"
    record = records.Record(file, time.time() + 60, tables.engine)

    def fails() -> dict[str, Any]:
        # Written before the next case begins, not when all are done.
        assert json.loads(file.read_text())["generate"] == [{"ratio": 2.0}]
        raise RuntimeError("out of shared memory\nand more")

    record.case("generate", "first", lambda: {"ratio": 2.0})
    record.case("generate", "second", fails)
    record.case("generate", "third", lambda: {"ratio": 3.0})
    record._deadline = time.time() - 1
    record.case("generate", "fourth", lambda: {"ratio": 4.0})
    written = json.loads(file.read_text())
    assert written["generate"] == [{"ratio": 2.0}, {"ratio": 3.0}]
    assert written["failed"] == [{"case": "generate: second", "why": "RuntimeError: out of shared memory"}]
    assert written["not_begun"] == ["generate: fourth"]
    for line in ("**Failed:** generate: second: RuntimeError", "| 3.0 |", "time was up: generate: fourth."):
        assert line in written["markdown"]
    assert record.failed


def test_a_part_that_dies_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seconds_of: dict[str, float] = {}

    def spawn(name: str, output: Path, seconds: float, tune: bool) -> tuple[int, str | None]:
        seconds_of[name] = seconds
        written = {"machine": {"device": "a device"}, "decode": [{"ms": 1.5}], "markdown": f"## All of {name}"}
        if name != "engine":
            (output / f"gpu-{name}.json").write_text(json.dumps(written))
        return {"kernels": (-11, "it ended with exit code -11"), "engine": (1, "it hung, and was stopped")}.get(
            name, (0, None)
        )

    monkeypatch.setattr(run, "spawn", spawn)
    # A figure of an earlier run is not taken for one of this.
    (tmp_path / "gpu-engine.json").write_text('{"decode": [{"ms": 9}]}')
    assert run.run_all(list(run.PARTS), tmp_path, 9.0, False) == 1
    record, text = json.loads((tmp_path / "gpu.json").read_text()), (tmp_path / "gpu.md").read_text()
    assert record["machine"] == {"device": "a device"}
    assert record["kernels"] == {"decode": [{"ms": 1.5}], "ended": "it ended with exit code -11"}
    assert record["engine"] == {"ended": "it hung, and was stopped"}
    assert all(f"## All of {name}" in text for name in ("checks", "kernels", "compiled"))
    assert "**The part `engine`: it hung, and was stopped.**" in text
    # What a part leaves of its time is the next ones'.
    assert 160 < seconds_of["checks"] <= 162 and seconds_of["compiled"] > 500


def test_a_part_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sleeper = tmp_path / "sleeper.py"
    sleeper.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(run, "COMMAND", [sys.executable, str(sleeper)])
    monkeypatch.setattr(run, "_GRACE", 0.2)
    assert run.spawn("checks", tmp_path, 0.2, False) == (1, "it hung, and was stopped")

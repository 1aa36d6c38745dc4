"""The GPU benchmark: all of it runs anywhere, on torch, triton and transformers alone.

A GPU's first minutes are dear: what fails, hangs or comes too late takes nothing else with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu import product, run, tables
from benchmarks.gpu import record as records
from benchmarks.gpu.bench import Bench
from tests.support.executor.pretend_cuda import pretend_cuda

triton = pytest.importorskip("triton")

pytestmark = pytest.mark.unshipped
ROOT = Path(__file__).resolve().parents[2]
# Of what the project depends on beside torch, triton, transformers and numpy, nothing can be found.
BARE = """
import json, os, sys
from pathlib import Path
from importlib.machinery import PathFinder

ABSENT = {"lark", "llguidance", "llvmlite", "networkx", "pydantic", "click", "rich", "textual", "pygls", "math_verify",
          "matplotlib", "pytest", "hypothesis", "llama_cpp", "gguf"}

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else super().find_spec(name, path, target)

sys.meta_path[:] = [Bare if finder is PathFinder else finder for finder in sys.meta_path]
from benchmarks.gpu import kernel_checks, record, run, tables
"""
CHECKS = """
sys.argv[1:] = ["--interpret-check"]
sys.exit(run.main())
"""
PREPARE = """
from benchmarks.gpu.compiled import cases, launches
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

(gate, *_) = [case for case in cases.CASES if case.form == "gate"]
cases.CASES = (gate,)
attention = kernel_checks.launches
kernel_checks.launches = lambda: []
os.chdir(CACHE)
cache = Path("cache")
assert run.prepare(90, cache.absolute()) == 2
run.prepare(90, cache)
made = sorted(cache.rglob("*"))
# A launch that compiles where it must, on a device of this capability.
launch = JITFunction.run
JITFunction.run = lambda self, *args, **options: launch(self, *args, **{**options, "warmup": True})
driver.set_active(launches._AbsentDriver(90))
cases.layers.on_device = lambda tensor: True
gate.launch()
assert any(path.suffix == ".cubin" for path in made) and sorted(cache.rglob("*")) == made
names = {variant.kernel for variant in launches.launches_of(90, attention()[0])}
assert {"attention_kernel", "prefix_kernel", "store_kernel"} <= names, names
"""
DRY = """
sys.argv[1:] = ["--dry", "--output", OUTPUT]
sys.exit(run.main())
"""


def bare(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", BARE + code]
    return subprocess.run(
        command, cwd=ROOT, env={**inherited, "OMP_NUM_THREADS": "1", **environment}, capture_output=True, text=True
    )


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="the parts run on the device")
def test_every_part_runs_on_a_cpu_and_ends_in_verdicts(tmp_path: Path) -> None:
    """By the torch twins, over tiny shapes: what breaks here would cost a GPU's minutes."""
    done = bare(f"OUTPUT = {str(tmp_path)!r}" + DRY)
    record = json.loads((tmp_path / "gpu.json").read_text())
    for name in run.PARTS:
        assert record[name]["failed"] == [], done.stdout + done.stderr
    assert {name: record[name]["not_begun"] for name in run.PARTS if record[name]["not_begun"]} == {
        "product": ["models from disk and a program (no lark, llguidance, llvmlite, pydantic: see --wheels)"]
    }
    # No part leaves a file of its own.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.json", "gpu.md"]
    checks = [check for name in ("checks", "faults") for check in record[name]["checks"]]
    # On some processors torch's products sum in another order for other sizes; here they stand in for the GPU's.
    trusted = [check for check in checks if not check.get("check", "").startswith("deterministic: the same")]
    assert trusted and [check for check in trusted if not check["passed"]] == []
    # Every table that a verdict is made of.
    tables_made = {
        "profile": ("steps", "kernels"),
        "kernels": ("decode", "ragged", "cascade", "prefill", "store", "sample"),
        "rows": ("products",),
        "steps": ("decode", "search", "generate"),
    }
    for name, made in tables_made.items():
        assert all(record[name][table] for table in made)
    assert {row["variant"] for row in record["steps"]["decode"]} == {"overlapped", "deterministic", "modules"}
    assert all(row["ms"] > 0 for row in record["steps"]["decode"])
    text = (tmp_path / "gpu.md").read_text()
    assert "## Verdicts" in text and f"{len(record['checks']['checks'])} checks hold" in text
    assert "there is no estimate for a dry run" in text


def test_the_products_path_mixes_no_tensors_of_two_devices() -> None:
    """What comes first on a GPU, on a device that pretends to be one."""

    class Tiny(Bench):
        @property
        def dry(self) -> bool:
            return True

        def free(self) -> None:
            pass

    with pretend_cuda():
        wrong = [part(Tiny("cuda")) for part in (product.built_in, product.value_head, product.program)]
    assert wrong == [None] * 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="the driver of the device would be replaced")
def test_a_prepared_cache_has_what_a_launch_takes_from_it(tmp_path: Path) -> None:
    done = bare(f"CACHE = {str(tmp_path)!r}" + PREPARE)
    assert done.returncode == 0, done.stderr
    assert "kernels for compute capability 9.0 in cache: 1" in done.stdout


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
        written = {"machine": {"device": "a device"}, "failed": [], "markdown": f"## All of {name}"}
        if name != "steps":
            (output / f"gpu-{name}.json").write_text(json.dumps(written))
        return {"kernels": (-11, "it ended with exit code -11"), "steps": (1, "it hung, and was stopped")}.get(
            name, (0, None)
        )

    monkeypatch.setattr(run, "spawn", spawn)
    assert run.run_all(list(run.PARTS), tmp_path, 9.0, False) == 1
    record, text = json.loads((tmp_path / "gpu.json").read_text()), (tmp_path / "gpu.md").read_text()
    assert record["machine"] == {"device": "a device"}
    assert record["kernels"] == {"failed": [], "ended": "it ended with exit code -11"}
    assert record["steps"] == {"ended": "it hung, and was stopped"}
    assert all(f"## All of {name}" in text for name in ("checks", "kernels", "product"))
    assert "**The part `steps`: it hung, and was stopped.**" in text
    # What a part leaves of its time is the next ones'.
    assert 88 < seconds_of["product"] <= 90 and seconds_of["kernels"] > 500
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.json", "gpu.md"]
    assert "- `kernels`: **wrong**; it ended with exit code -11. Next: run it alone: `--only kernels`" in text


def test_wheels_are_what_the_parts_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no network, what a session needs besides comes with the checkout."""
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "carried-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("carried.py", "NAME = 'carried'")
    run.unpacked(tmp_path / "wheels", tmp_path / "there")
    command = [sys.executable, "-c", "import carried; print(carried.NAME)"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "carried\n"


def test_a_part_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sleeper = tmp_path / "sleeper.py"
    sleeper.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(run, "COMMAND", [sys.executable, str(sleeper)])
    monkeypatch.setattr(run, "_GRACE", 0.2)
    assert run.spawn("checks", tmp_path, 0.2, False) == (1, "it hung, and was stopped")

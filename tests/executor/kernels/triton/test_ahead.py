"""Kernels that a pool compiles are those that a launch would have compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytest.importorskip("triton")

# On a device that is not there nothing can be launched, but it is known what a launch compiles.
CODE = """
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction
from benchmarks.gpu.compiled import cases, launches
from qpdsl.executor.kernels.triton.common import queued

driver.set_active(launches._AbsentDriver(90))
cases.layers.on_device = lambda tensor: True
(gate, *_) = [case for case in cases.CASES if case.form == "gate"]
compile_now = JITFunction._do_compile
with ThreadPoolExecutor(2) as pool:
    with queued(pool) as waiting:
        gate.launch()
        gate.launch()
    assert len(waiting) == 1 and JITFunction._do_compile is compile_now
cache = Path(os.environ["TRITON_CACHE_DIR"])
made = sorted(cache.rglob("*"))
assert any(path.suffix == ".cubin" for path in made)
launch = JITFunction.run
JITFunction.run = lambda self, *args, **options: launch(self, *args, **{**options, "warmup": True})
gate.launch()
assert sorted(cache.rglob("*")) == made
"""


def test_a_launch_takes_what_the_pool_compiled(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""Kernels are compiled in a pool before the first step, and are those that a launch would have compiled."""

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

# A compiler that waits for another to begin: one after the other, they would never end.
ENGINE = """
import threading
import triton
from triton.runtime.driver import driver
from benchmarks.gpu.compiled import launches
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.engine.step import backends
from qpdsl.executor.kernels import layers, paged_attention
from tests.support.executor.models import engine_of, random_model

engine = engine_of(PagedModel(random_model("llama"), kernels=True), config=EngineConfig(max_sequences=4))
driver.set_active(launches._AbsentDriver(90))
for module in (backends, layers, paged_attention):
    module.on_device = lambda tensor: True
backends.os.cpu_count = lambda: 2
two, made, told = threading.Barrier(2), [], []

def compile(source, target, options):
    if len(made) < 2:
        made.append(None)
        two.wait(20)
    made.append(source.fn.__name__)

triton.compile = compile
engine.warm_up(lambda *what: told.append(what))
kernels = made[2:]
wanted = {"attention_kernel", "merge_kernel", "add_norm_kernel", "rotate_store_kernel", "gate_kernel", "dense_kernel"}
assert wanted <= set(kernels), kernels
assert told == [("m", "compiling kernels", done, len(kernels)) for done in range(len(kernels) + 1)], told
"""


@pytest.mark.parametrize("code", [CODE, ENGINE], ids=["a launch takes what the pool compiled", "a warm engine"])
def test_kernels_are_compiled_ahead(code: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

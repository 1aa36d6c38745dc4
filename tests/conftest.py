"""One thread: tests run beside each other, and two OpenMP teams on one core are many times slower than one thread.

Triton interprets its kernels where there is no GPU. It looks once, when it is first imported, and transformers imports
it, so that is said before any test module loads.
"""

import os
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
# What the user's own runs left behind must not change what tests see.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="qpdsl-tests-")
# Nor may tests leave runs with the user's.
os.environ["QPDSL_RUNS"] = tempfile.mkdtemp(prefix="qpdsl-runs-")
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

pytest_plugins = ("tests.support.cli", "tests.support.api.problems", "tests.support.forked", "tests.support.kept_runs")

"""One thread: tests run beside each other, and two OpenMP teams on one core are many times slower than one thread.

A model is a few objects and much memory, so the cycle collector, which counts objects, would come late: what a file of
tests has cached and left is freed after it.

Triton interprets its kernels where there is no GPU. It looks once, when it is first imported, and transformers imports
it, so that is said before any test module loads.
"""

import atexit
import functools
import gc
import os
import shutil
import signal
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A machine that others use too makes anything slow.
settings.register_profile(
    "tests",
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("tests")
os.environ["OMP_NUM_THREADS"] = "1"
# A shell has what it puts in the background ignore Ctrl-C, and all that starts from there.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A client reads all certificates that it trusts, which takes longer than most of what tests ask a server.
ssl.create_default_context = functools.cache(ssl.create_default_context)
# What the user's own runs left behind must not change what tests see.
_FOLDER = Path(tempfile.mkdtemp(prefix="qpdsl-tests-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
_CACHES, _RUNS = _FOLDER / "cache", _FOLDER / "runs"
os.environ["XDG_CACHE_HOME"] = str(_CACHES)
# Workers share the kernels that they compile, and what loads of models came to: the process that starts them names the
# folders.
(_CACHES / "qpdsl").mkdir(parents=True)
for _kept in ("kernels", "models"):
    _shared = Path(os.environ.setdefault(f"QPDSL_TESTS_{_kept.upper()}", str(_CACHES / _kept)))
    _shared.mkdir(exist_ok=True)
    (_CACHES / "qpdsl" / _kept).symlink_to(_shared)
# Nor may tests leave runs with the user's.
os.environ["QPDSL_RUNS"] = str(_RUNS)
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

pytest_plugins = tuple(
    f"tests.support.{name}" for name in ("cli", "api.problems", "forked", "loaded_models", "saved_runs")
)


def _collect() -> None:
    """What is left, imported modules above all, stays, and need not be walked again and again."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    _collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """After the last test of a file: forgets what its functions cached, and collects."""
    yield
    if nextitem is None or nextitem.path != item.path:
        module = getattr(item, "module", None)
        for value in list(vars(module).values()) if module else ():
            if hasattr(value, "cache_clear") and value.__module__ == module.__name__:
                value.cache_clear()
        _collect()

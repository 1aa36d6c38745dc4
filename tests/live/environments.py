"""Where the software is that these tests need, or the reason why a test cannot run."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

PYTHONS = "QPDSL_LIVE_PYTHONS"


def python_with(*packages: str) -> Path:
    """The first Python that has all of these packages; skips the test where none has."""
    found = _python_with(packages)
    if found is None:
        pytest.skip(f"no Python in {PYTHONS} has {' and '.join(packages)}")
    return found


@cache
def _python_with(packages: tuple[str, ...]) -> Path | None:
    probe = f"import importlib.util as found, sys; sys.exit(not all(map(found.find_spec, {packages!r})))"
    for python in filter(None, os.environ.get(PYTHONS, "").split(os.pathsep)):
        if subprocess.run([python, "-c", probe], check=False, capture_output=True).returncode == 0:
            return Path(python)
    return None


def named_by(variable: str) -> Path:
    """The file or folder that an environment variable names; skips the test where it names none."""
    value = os.environ.get(variable, "")
    if not value or not Path(value).exists():
        pytest.skip(f"{variable} names nothing that is there")
    return Path(value)

"""A user's cache folder for one test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def own_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a new folder the user's cache. It holds compiled kernels alone, which are the same for all tests."""
    (folder / "qpdsl").mkdir(parents=True)
    (folder / "qpdsl" / "kernels").symlink_to(os.environ["QPDSL_TESTS_KERNELS"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))

"""A store of completions, and retries that nobody waits long for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qpdsl.executor.remote.completion_store import CompletionStore
from qpdsl.executor.remote.server import failures


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a retry here."""
    monkeypatch.setattr(failures, "_FIRST", 0.002)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CompletionStore]:
    made = CompletionStore(tmp_path / "completions.sqlite")
    yield made
    made.close()

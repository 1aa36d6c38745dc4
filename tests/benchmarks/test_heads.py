"""The benchmark of heads runs on small ones and tells what it measured."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.decoding import head_tables, heads
from qpdsl.executor.kernels.llvm.jit.compile import vector_width

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")


def test_it_measures_and_tells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heads, "WIDTHS", (64,))
    monkeypatch.setattr(heads, "VOCABULARIES", (2048,))
    monkeypatch.setattr(heads, "_LEAST_SECONDS", 1e-6)
    monkeypatch.setattr(heads, "_SHAPES", {"tiny": (64, 2, 4, 2, 16, 128, 2048)})
    monkeypatch.setattr(heads, "_STEP_IDS", (1, 16))
    monkeypatch.setattr(head_tables, "_GOAL", (64, 2048, 256, 0.0))
    arguments = argparse.Namespace(quick=True, repeats=1)
    record: dict[str, Any] = {
        "machine": {"processor": "this one", "cores": 1, "python": "3", "torch": "2"},
        "threads": 1,
        "clock": "cpu",
        "bytes_a_second": 1e10,
        "kernels": [vars(kernel) for kernel in heads.kernels(arguments, time.process_time)],
        "steps": [vars(step) for step in heads.steps(arguments, time.process_time)],
    }
    one, *_, every = [entry for entry in record["kernels"] if entry["rows"] == 1]
    assert (one["ids"], one["panels"]) == (1, 1.0)
    assert (every["ids"], every["panels"]) == (2048, every["all_panels"])
    (goal,) = head_tables.goals_of(record)
    assert goal.met
    page = head_tables.page(record)
    assert "| 64 | 2,048 | 8 | clustered |" in page and "| tiny | 8 | 1 |" in page
    head_tables.draw(record, tmp_path / "heads.svg")
    assert (tmp_path / "heads.svg").read_text().startswith("<?xml")

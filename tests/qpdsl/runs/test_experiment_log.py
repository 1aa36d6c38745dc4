"""Evaluations in experiment trackers, without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qpdsl.errors import UsageError
from qpdsl.runs.experiment_log import tracker

CELL: dict[str, Any] = {"program": "p", "parameters": {"n": "4"}, "accuracy": 0.5, "low": None, "runs": ["a"]}
EVALUATION: dict[str, Any] = {"name": "e", "input": "i", "problems": 2, "seeds": [0], "baseline": None, "cells": [CELL]}


def test_another_target_is_refused() -> None:
    for target in ("wandb", "wandb:", "comet:x"):
        with pytest.raises(UsageError, match="`wandb:PROJECT` or `mlflow:URI`"):
            tracker(target)


def test_wandb_has_a_table_of_the_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs wandb")
    for name, value in (("MODE", "offline"), ("DIR", str(tmp_path)), ("SILENT", "true")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    tracker("wandb:qpdsl")(EVALUATION)
    (run,) = tmp_path.glob("wandb/offline-run-*")
    (table,) = (json.loads(file.read_text()) for file in run.glob("files/media/table/*.json"))
    assert dict(zip(table["columns"], table["data"][0], strict=True)) == {
        "program": "p", "parameters": '{"n": "4"}', "accuracy": 0.5, "low": None, "runs": '["a"]',
    }  # fmt: skip


def test_mlflow_has_a_run_for_each_cell(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    pytest.importorskip("sqlalchemy", reason="mlflow-skinny has no store of its own")
    uri = f"sqlite:///{tmp_path / 'runs.db'}"
    tracker(f"mlflow:{uri}")(EVALUATION)
    (run,) = mlflow.search_runs(experiment_names=["e"], output_format="list")
    assert (run.info.status, run.info.run_name, run.data.metrics, run.data.params["n"]) == (
        "FINISHED", "p(n=4)", {"accuracy": 0.5}, "4",
    )  # fmt: skip


def test_a_store_that_does_not_open_is_refused_before_anything_runs(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs mlflow")
    with pytest.raises(UsageError, match="maintenance mode") as refused:
        tracker(f"mlflow:{tmp_path.as_uri()}")
    assert "sqlite:///" in str(refused.value.help)

"""The cells of an evaluation in somebody's experiment tracker: W&B or MLflow, by their own libraries."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qpdsl.errors import UsageError, shorten
from qpdsl.grammar.suggest import listed

# `to_json` of an evaluation, and what stands behind the name of the tracker.
Log = Callable[[Mapping[str, Any], str], None]


def tracker(target: str) -> Callable[[Mapping[str, Any]], None]:
    """What logs an evaluation (as `to_json` has it) to `wandb:PROJECT` or `mlflow:URI`; it raises UsageError.

    Raises UsageError for any other target, where its library is not installed, and where MLflow opens no such store.
    """
    name, _, place = target.partition(":")
    if name not in _TRACKERS or not place:
        places = [f"{own}:{what}" for own, (_, what) in _TRACKERS.items()]
        raise UsageError(f"`--log` takes {listed(places, last='or')}, not `{target}`")
    log = _TRACKERS[name][0]
    try:
        __import__(name)
    except ImportError as error:
        raise UsageError(f"`--log {target}` needs the library {name}", f"`pip install {name}`") from error
    if name == "mlflow":
        with _told(target, "a server's URL or a database is taken: `mlflow:sqlite:///runs.db`"):
            _open_mlflow(place)

    def logged(evaluation: Mapping[str, Any]) -> None:
        with _told(target, "all cells are saved: the same command logs them, and runs nothing again"):
            log(evaluation, place)

    return logged


@contextlib.contextmanager
def _told(target: str, help: str) -> Iterator[None]:
    """Raises UsageError for whatever a tracker's library raises in the block."""
    try:
        yield
    except Exception as error:
        raise UsageError(f"`--log {target}`: {shorten(' '.join(str(error).split()), 200)}", help) from error


def _wandb(evaluation: Mapping[str, Any], project: str) -> None:
    """One run: a table with a line for each cell, and each cell's numbers under its name."""
    import wandb

    config = {name: value for name, value in evaluation.items() if name != "cells"}
    with wandb.init(project=project, job_type="eval", name=evaluation["name"], config=config) as run:
        columns = list(dict.fromkeys(name for cell in evaluation["cells"] for name in cell))
        rows = [[_plain(cell.get(name)) for name in columns] for cell in evaluation["cells"]]
        cells = wandb.Table(columns=columns, data=rows)
        figures = {f"{_name(own)}/{name}": one for own in evaluation["cells"] for name, one in _numbers(own).items()}
        run.log({"cells": cells, **figures})


def _open_mlflow(uri: str) -> None:
    """Finds out whether there is a store to log to, before anything is run for it."""
    import mlflow

    mlflow.set_tracking_uri(uri)
    mlflow.search_experiments(max_results=1)


def _mlflow(evaluation: Mapping[str, Any], uri: str) -> None:
    """A run for each cell."""
    import mlflow

    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment(evaluation["name"])
    for cell in evaluation["cells"]:
        with mlflow.start_run(run_name=_name(cell)):
            mlflow.log_params({"input": evaluation["input"], "program": cell["program"], **cell["parameters"]})
            mlflow.log_metrics(_numbers(cell))
            mlflow.log_dict(dict(cell), "cell.json")


def _name(cell: Mapping[str, Any]) -> str:
    values = ", ".join(f"{name}={value}" for name, value in cell["parameters"].items())
    return f"{cell['program']}({values})" if values else str(cell["program"])


def _numbers(cell: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in cell.items() if type(value) in (int, float)}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


_TRACKERS: Mapping[str, tuple[Log, str]] = {"wandb": (_wandb, "PROJECT"), "mlflow": (_mlflow, "URI")}

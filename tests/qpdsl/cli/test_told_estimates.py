"""What a run was expected to take is told to whoever watches it, as `explain --analyze` has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qpdsl.executor.events.events import Estimated
from qpdsl.executor.events.trace import LineReader, read_trace
from tests.support.cli import Run
from tests.support.user_cache import own_cache

ROWS = 3
RUN = ("best_of_n", "--input", "counting-500", "--limit", ROWS, "--set", "n=2", "--concurrency", 2)


def test_each_operator_has_its_own_and_the_run_the_sum(
    qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own_cache(tmp_path / "one", monkeypatch)
    qpdsl("run", *RUN, "--output", "out.jsonl", "--trace", "trace.jsonl")
    seen = list(read_trace(tmp_path / "trace.jsonl", LineReader()))
    (estimated,) = (event for event in seen if isinstance(event, Estimated))
    own_cache(tmp_path / "two", monkeypatch)
    analysis = json.loads(qpdsl("explain", *RUN, "--analyze", "--format", "json").out)
    operators = {operator["id"]: operator["estimated"] for operator in analysis["operators"]}
    assert set(operators) == set(estimated.operators)
    for id_, own in operators.items():
        told = estimated.operators[id_]
        assert told.rows * ROWS == pytest.approx(own["rows_out"])
        for name in ("prompt_tokens", "cached_tokens", "sampled_tokens"):
            one, whole = getattr(told, name), own[name]
            assert one is None if whole is None else one * ROWS == pytest.approx(whole, abs=1e-4)
    assert estimated.kv_bytes == pytest.approx(analysis["estimated"]["kv_bytes"], rel=1e-6)
    assert estimated.source == analysis["estimated"]["source"] and estimated.in_flight == 2

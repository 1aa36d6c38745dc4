"""What `qpdsl profile` measures, as far as it is no matter of speed."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial

import pytest

from qpdsl.executor.measure.device import measure_kv
from qpdsl.executor.measure.loads import Trial
from qpdsl.executor.models.load import load
from qpdsl.executor.models.text_model import TextModel
from qpdsl.planner.cost.device import device_from_json, device_json, nominal
from qpdsl.session import locate


@pytest.fixture(scope="module")
def mini() -> TextModel:
    return load("zoo/counting-mini", locate("zoo/counting-mini"), "cpu", None)


def test_eight_bits_are_measured_with_their_error(mini: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qpdsl.executor.measure.loads.BATCHES", (1, 4))
    monkeypatch.setattr("qpdsl.executor.measure.loads.CHUNKS", (16, 64))
    again = partial(load, mini.name, locate(mini.name), "cpu", None)
    found = measure_kv(mini, again, time.perf_counter)
    plain = mini.paged.layout.token_bytes
    assert set(found) == {"int8", "fp8"}
    assert 0 < found["int8"].epsilon < found["fp8"].epsilon
    assert all(each.token_bytes < plain / 2 and each.decode.at(1) > 0 for each in found.values())
    assert mini.paged.layout.kv_type is None
    # A model that keeps them so already has no other way.
    assert measure_kv(again("int8"), again, time.perf_counter) == {}
    device = nominal()
    device = device.with_model("m", replace(device.profile("m"), kv_types=found))
    assert device_from_json(device_json(device)) == device


def test_a_type_that_gives_no_numbers_is_left_out(mini: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = iter([[1.0, 2.0], [1.0, math.nan], [math.inf, 2.0]])
    monkeypatch.setattr("qpdsl.executor.measure.device._logits", lambda trial, texts: next(logits))
    monkeypatch.setattr(Trial, "written", lambda self, texts, tokens: [])
    assert measure_kv(mini, partial(load, mini.name, locate(mini.name), "cpu", None), time.perf_counter) == {}


def test_a_clock_of_ones_own_is_what_counts(mini: TextModel) -> None:
    ticks = iter(range(1_000_000))
    assert Trial(mini, lambda: float(next(ticks))).decode(2) == 1.0

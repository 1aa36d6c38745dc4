"""What `qpdsl profile` measures, apart from speed."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from qpdsl.executor.measure.device import changed_draws, measure_kv_types
from qpdsl.executor.measure.loads import ModelLoads
from qpdsl.executor.models.load import load
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.model_location import locate
from qpdsl.planner.cost.device import device_from_json, device_json, nominal


@pytest.fixture(scope="module")
def mini() -> PagedTextModel:
    return load("zoo/counting-mini", locate("zoo/counting-mini"), "cpu", None)


def test_fewer_bits_are_measured_with_their_error(mini: PagedTextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qpdsl.executor.measure.loads.BATCHES", (1, 4))
    monkeypatch.setattr("qpdsl.executor.measure.loads.CHUNKS", (16, 64))
    reload = partial(load, mini.name, locate(mini.name), "cpu", None)
    profiles = measure_kv_types(mini, reload, time.perf_counter)
    plain = mini.paged.layout.token_bytes
    assert set(profiles) == {"int8", "fp8", "int4"}
    assert 0 < profiles["int8"].epsilon < profiles["fp8"].epsilon < profiles["int4"].epsilon
    assert all(profile.token_bytes < plain / 2 and profile.decode.at(1) > 0 for profile in profiles.values())
    assert all(profile.loss is not None and 0 < profile.loss < 1 for profile in profiles.values())
    assert mini.paged.layout.kv_type is None
    # A model that keeps them in eight bits already has no other type.
    assert measure_kv_types(reload("int8"), reload, time.perf_counter) == {}
    device = nominal()
    device = device.with_model("m", replace(device.profile("m"), kv_types=profiles))
    assert device_from_json(device_json(device)) == device


def test_a_type_that_gives_no_numbers_is_left_out(mini: PagedTextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = iter([[1.0, 2.0], [1.0, math.nan], [math.inf, 2.0], [1.0, math.nan]])
    monkeypatch.setattr("qpdsl.executor.measure.device._logits", lambda loads, texts: next(logits))
    monkeypatch.setattr(ModelLoads, "texts", lambda self, count, tokens: [])
    assert measure_kv_types(mini, partial(load, mini.name, locate(mini.name), "cpu", None), time.perf_counter) == {}


def test_a_clock_of_ones_own_is_what_counts(mini: PagedTextModel) -> None:
    ticks = iter(range(1_000_000))
    assert ModelLoads(mini, lambda: float(next(ticks))).decode(2) == 1.0


def test_draws_that_come_out_otherwise_are_counted_and_one_more() -> None:
    logits = [float(value) for value in np.random.default_rng(3).normal(size=200 * 8) * 4]
    assert changed_draws(logits, logits, 8) == pytest.approx(1 / 201)
    turned = [-value for value in logits[: 8 * 50]] + logits[8 * 50 :]
    assert changed_draws(logits, turned, 8) == pytest.approx(51 / 201)
    assert changed_draws(logits, [-value for value in logits], 8) > 0.9

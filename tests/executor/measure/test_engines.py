"""Where an engine takes all of a device, what is measured has one at a time, and no more memory than it needs."""

from __future__ import annotations

import time

import pytest

from qpdsl.executor.measure import loads
from qpdsl.executor.measure.device import measure_model
from qpdsl.executor.models.load import load
from qpdsl.model_location import locate
from tests.support.executor.small_card import small_card


def test_a_model_is_measured_on_a_device_that_holds_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "BATCHES", (1, 4))
    monkeypatch.setattr(loads, "CHUNKS", (16, 64))
    model = load("zoo/counting-mini", locate("zoo/counting-mini"), "cpu", None)
    with small_card(6 << 20) as card:
        profile = measure_model(model, tables=True, clock=time.perf_counter)
        # Every engine is gone, whoever still holds something of it.
        assert card.free == 6 << 20
    assert profile.decode is not None and profile.prefill is not None
    assert card.made > 10

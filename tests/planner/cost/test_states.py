"""What layers keep of a sequence however long it is counts in memory and in what a step moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpdsl.planner.cost.device import ModelShape, device_from_json, device_json, nominal

SHAPE = ModelShape(1_000_000, 4, 8, 2, 32)
# As much as 1,000 tokens.
KEEPING = replace(SHAPE, state_bytes=1000 * SHAPE.kv_bytes)


def test_a_sequence_takes_its_states_besides() -> None:
    assert KEEPING.kept_bytes(50) == SHAPE.kept_bytes(1050)
    assert KEEPING.kept_bytes(50, 3) == SHAPE.kept_bytes(3050)


def test_each_sequence_of_a_step_reads_and_writes_them() -> None:
    device = replace(nominal(), bandwidth=1e9, peak=1e15)
    plain, keeping = (device.by_roofline(shape) for shape in (SHAPE, KEEPING))
    for rows in (1, 64):
        more = keeping.decode.at(rows) - plain.decode.at(rows)
        assert more == pytest.approx(rows * 2 * KEEPING.state_bytes / device.bandwidth)
    # A prompt is one sequence, however much of it a step computes.
    assert keeping.prefill.at(512) - plain.prefill.at(512) == pytest.approx(2 * KEEPING.state_bytes / device.bandwidth)


def test_profiles_keep_them_and_older_ones_have_none() -> None:
    device = nominal().with_model("m", nominal().by_roofline(KEEPING))
    data = device_json(device)
    assert device_from_json(data).models["m"].shape == KEEPING
    del data["models"]["m"]["shape"]["state_bytes"]
    assert device_from_json(data).models["m"].shape == SHAPE

"""The batch surface: what moves it, and that its optimum is the greatest least rate."""

from __future__ import annotations

from itertools import pairwise

import pytest

from qpdsl.planner.cost.demand import Demand
from qpdsl.planner.cost.device import Curve, Device, ModelProfile, ModelShape
from qpdsl.planner.cost.timing import RunLoad
from qpdsl.planner.explain.surface_tables import surface_json, surface_text
from qpdsl.planner.optimize.batch_surface import BatchSurface, batch_surface

SHAPE = ModelShape(1_000_000, 4, 8, 2, 32)
# A step takes a millisecond, and then 10 µs a sequence or a token.
CURVE = Curve(((1.0, 0.00101), (2048.0, 0.02148)))
PROFILE = ModelProfile(SHAPE, 0.001, 160, CURVE, CURVE, read_seconds=0.0)
DEVICE = Device("d", "cpu", "float32", 1, 1e10, 1e11, 1e-4, models={"llm": PROFILE, "prm": PROFILE})
# A problem: 16 samples of 100 tokens after a prompt of 100; the verifier reads 16 texts of 200 tokens.
WRITES = Demand("1", "llm", 100, 0, 1600, 100, 1, 16, 3200, opening=16, context=160)
READS = Demand("2", "prm", 3200, 0, 0, 0, 1, 16, 3200)


def surface(kv_bytes: int = 1 << 30, demands: tuple[Demand, ...] = (WRITES, READS)) -> BatchSurface:
    found = batch_surface(demands, DEVICE, RunLoad(kv_bytes=kv_bytes))
    assert found is not None
    return found


def test_more_sequences_and_tokens_never_cost_throughput_where_memory_is_ample() -> None:
    found = surface()
    for table in found.rates.values():
        for row in table:
            assert all(low <= high * 1.001 for low, high in pairwise(row))
        for column in zip(*table, strict=True):
            assert all(low <= high * 1.001 for low, high in pairwise(column))
    # The generator is what more sequences help, the verifier what more tokens help.
    assert found.rates["llm"][-1][-1] > 5 * found.rates["llm"][0][-1]
    assert found.rates["prm"][-1][-1] > 1.5 * found.rates["prm"][-1][0]


def test_the_optimum_is_where_the_slowest_is_fastest() -> None:
    found = surface()
    best = found.optimum
    rows = zip(*(table for table in found.rates.values()), strict=True)
    least = max(min(cells) for row in rows for cells in zip(*row, strict=True))
    assert best.rate == pytest.approx(least, rel=0.002)
    assert best.rate == pytest.approx(min(step.rate for step in found.steps.values()))
    assert best.slowest == min(found.steps, key=lambda model: found.steps[model].rate)
    assert best.in_turns == pytest.approx(1 / sum(1 / step.rate for step in found.steps.values()))
    assert sum(best.shares.values()) == pytest.approx(1)


def test_memory_bounds_the_sequences_side_by_side() -> None:
    held = surface().held["llm"]
    # Eight sequences of each model.
    found = surface(int(16 * held))
    assert found.optimum.rate < surface().optimum.rate
    assert found.rates["llm"][3] == found.rates["llm"][-1]
    # Little memory goes to the model that needs it more.
    shares = surface(int(16 * held), (WRITES, Demand("2", "prm", 32, 0, 0, 0, 1, 16, 32))).optimum.shares
    assert shares["llm"] > shares["prm"]


def test_a_program_of_one_model_and_of_none() -> None:
    alone = surface(demands=(WRITES,))
    assert alone.optimum.shares == {"llm": 1.0} and alone.optimum.in_turns == pytest.approx(alone.optimum.rate)
    assert batch_surface((), DEVICE, RunLoad()) is None
    nothing = Demand("1", "llm", 0, 0, 0, 0, 0, 0, 0)
    assert batch_surface((nothing,), DEVICE, RunLoad()) is None


def test_the_surface_as_text_and_data() -> None:
    found = surface()
    text = surface_text("search", found, DEVICE)
    best = found.optimum
    assert f"min-max: {best.sequences} sequences and {best.token_budget:,} tokens a step" in text
    assert text.count("*") == 2 and "the device as `qpdsl profile` measured it" in text and "bound by" in text
    data = surface_json("search", found)
    assert data["program"] == "search" and data["optimum"]["sequences"] == best.sequences
    assert len(data["rates"]["prm"]) == len(data["sequences"])

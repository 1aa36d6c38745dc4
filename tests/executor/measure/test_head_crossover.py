"""From which share of the head on a step reads all of it: measured, kept with the device, and used."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.kernels.llvm.panel_head import SPARSE_SHARE
from qpdsl.executor.measure import device as measure
from qpdsl.executor.measure.device import head_crossover
from qpdsl.planner.cost.device import device_from_json, device_json, nominal
from tests.support.executor.models import paged, random_model

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")


def clock(slower: float) -> Callable[[], float]:
    """A list takes `slower` times as long as its share of the head says, by this clock."""
    numbers, now = count(), 0.0

    def read() -> float:
        nonlocal now
        number = next(numbers)
        # A list and all of the head, begun and ended, four times a share.
        share = measure._SHARES[number // 16]
        now += {1: slower * share, 3: 1.0}.get(number % 4, 0.0)
        return now

    return read


@pytest.mark.parametrize(("slower", "share"), [(0.99, 1.0), (1.24, 0.8), (1.9, 0.5), (3.0, 0.25)])
def test_the_crossover_is_where_a_list_stops_paying(slower: float, share: float) -> None:
    assert head_crossover(paged("llama"), clock(slower)) == share


def test_no_crossover_without_a_compiled_head() -> None:
    assert head_crossover(PagedModel(random_model("llama"), kernels=True), clock(1.0)) is None


def test_the_share_is_kept_with_the_device_and_taken_by_the_head() -> None:
    device = nominal()
    device = device.with_model("m", replace(device.profile("m"), sparse_share=0.7))
    assert device_from_json(json.loads(json.dumps(device_json(device)))) == device
    model = paged("llama")
    assert model.panel_head is not None and model.panel_head.planner.share == SPARSE_SHARE
    model.prefer_sparse(0.7)
    assert model.panel_head.planner.share == 0.7

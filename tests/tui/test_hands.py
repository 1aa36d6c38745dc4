"""A slice of what `python -m benchmarks.dashboard_fuzz` does at length."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.tui.hands import handle
from tests.support.tui.traces import BEAM


@pytest.mark.parametrize("seed", range(2))
def test_nothing_that_hands_do_closes_the_dashboard(seed: int) -> None:
    asyncio.run(handle(BEAM, seed, 250))

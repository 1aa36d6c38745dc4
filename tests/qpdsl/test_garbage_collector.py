"""The cycle collector runs as often as before when the block has ended."""

from __future__ import annotations

import gc

import pytest

from qpdsl.garbage_collector import collections_paused, collections_seldom


@pytest.mark.parametrize("before", [700, 0, 50_000])
def test_the_collector_comes_by_less_often_and_then_as_before(before: int) -> None:
    own = gc.get_threshold()
    gc.set_threshold(before, 5, 5)
    try:
        with pytest.raises(KeyError), collections_seldom(20_000):
            assert gc.get_threshold() == ((20_000 if before == 700 else before), 5, 5)
            raise KeyError
        assert gc.get_threshold() == (before, 5, 5)
    finally:
        gc.set_threshold(*own)


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_pauses_and_then_is_as_before(before: bool) -> None:
    own = gc.isenabled()
    (gc.enable if before else gc.disable)()
    try:
        with pytest.raises(KeyError), collections_paused():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == before
    finally:
        (gc.enable if own else gc.disable)()

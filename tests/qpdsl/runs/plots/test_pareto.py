"""The front against its definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qpdsl.runs.statistics import on_front

FEW = st.integers(0, 4).map(float)


@given(st.lists(st.tuples(FEW, FEW), max_size=12))
def test_on_the_front_is_what_nothing_beats(points: list[tuple[float, float]]) -> None:
    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one != other and one[0] <= other[0] and one[1] >= other[1]

    assert on_front(points) == [not any(beats(other, point) for other in points) for point in points]

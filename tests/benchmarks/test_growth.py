"""Curves of cost are taken apart into what they were made of."""

from __future__ import annotations

import pytest

from benchmarks.engine.growth import Point, fitted


@pytest.mark.parametrize("parts", [(3.0, 0.5, 0.0), (0.0, 2.0, 0.01), (1.0, 0.0, 0.0), (4.0, 0.2, 0.003)])
def test_a_curve_is_its_parts(parts: tuple[float, float, float]) -> None:
    a, b, c = parts
    points = [Point(x, a + b * x + c * x * x, x) for x in (1, 2, 8, 64, 512)]
    assert fitted(points, 3) == pytest.approx(parts, abs=1e-6)
    assert fitted(points, 1)[1:] == (0.0, 0.0)

"""One picture in text and as SVG, byte for byte, and what it does with odd points."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from qpdsl.runs.plots import Point, Scatter, begins_plot, svg, text_plot, x_text
from tests.support.golden import check

HERE = Path(__file__).parent
POINTS = (
    Point("best_of_n", 180, 0.55, 0.48, 0.62, "n=4"),
    Point("best_of_n", 720, 0.62, 0.55, 0.69, "n=16"),
    Point("best_of_n", 2880, 0.66, 0.59, 0.72, "n=64", front=True),
    Point("self_consistency", 176, 0.56, 0.49, 0.63, "n=4", front=True),
    Point("self_consistency", 700, 0.63, 0.56, 0.70, "n=16", front=True),
    Point("self_consistency", 2900, 0.64, 0.57, 0.71, "n=64"),
)
SCATTER = Scatter("counting-500", "sampled tokens a problem", "accuracy", POINTS)
NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=12)
COSTS = st.just(0.0) | st.floats(1e-6, 1e9)
SHARES = st.floats(0, 1)


def test_text() -> None:
    check(HERE / "scatter.txt", "\n".join(text_plot(SCATTER)))


def test_svg() -> None:
    check(HERE / "scatter.svg", svg(SCATTER))


def test_a_narrow_terminal_has_narrow_lines() -> None:
    for width in (40, 60, 200):
        assert max(map(len, text_plot(SCATTER, width))) <= width


@given(
    st.lists(st.tuples(NAMES, COSTS, SHARES, SHARES, SHARES, st.booleans()), max_size=40),
    st.integers(40, 120),
)
def test_any_points_can_be_drawn(found: list[tuple[str, float, float, float, float, bool]], width: int) -> None:
    points = [
        Point(name, cost, y, low, high, label=name, front=front)
        for name, cost, *shares, front in found
        for low, y, high in [sorted(shares)]
    ]
    scatter = Scatter("a & b", "x < y", "accuracy", points)
    drawn = text_plot(scatter, width)
    assert len(drawn[3]) <= width and drawn == text_plot(scatter, width)
    marks = ElementTree.fromstring(svg(scatter)).iter("{http://www.w3.org/2000/svg}title")
    assert len(list(marks)) == len(points)


def test_a_plot_is_known_by_its_beginning() -> None:
    assert begins_plot(io.BytesIO(svg(SCATTER).encode()))
    assert not begins_plot(io.BytesIO(b'<svg class="plot" xmlns="http://www.w3.org/2000/svg">\n<path/>\n</svg>'))
    assert not begins_plot(io.BytesIO(b""))


def test_costs_are_short() -> None:
    assert [x_text(value) for value in (0.05, 1, 950, 1000, 2500, 1e6)] == ["0.05", "1", "950", "1k", "2.5k", "1M"]

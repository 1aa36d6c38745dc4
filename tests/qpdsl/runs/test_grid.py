"""The grid: which cells there are, and what they are called."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.errors import UsageError
from qpdsl.runs.grid import Cell, cells_of, read_axes

PROGRAMS = {"best_of_n": ["problem", "n"], "beam_search": ["problem", "width", "expand"]}
COUNTS = st.integers(1, 4)


def test_an_axis_multiplies_the_programs_that_have_it() -> None:
    cells = cells_of(PROGRAMS, read_axes(["n=4,16", "width=1,4", "beam_search.expand=2"]))
    assert [cell.name for cell in cells] == [
        "best_of_n(n=4)",
        "best_of_n(n=16)",
        "beam_search(width=1)",
        "beam_search(width=4)",
    ]
    assert dict(cells[2].settings) == {"width": "1", "expand": "2"} and cells[2].parameters == "width=1"
    assert cells_of(PROGRAMS, []) == [Cell("best_of_n"), Cell("beam_search")]


def test_the_last_axis_goes_fastest_and_a_programs_own_goes_first() -> None:
    cells = cells_of(PROGRAMS, read_axes(["width=1,2", "expand=3,4", "beam_search.width=9"]))
    assert [cell.parameters for cell in cells if cell.program == "beam_search"] == ["expand=3", "expand=4"]
    assert all(dict(cell.settings)["width"] == "9" for cell in cells if cell.program == "beam_search")
    both = cells_of(PROGRAMS, read_axes(["width=1,2", "expand=3,4"]))
    found = [cell.parameters for cell in both if cell.program == "beam_search"]
    assert found == [f"width={width} expand={expand}" for width in (1, 2) for expand in (3, 4)]


@given(st.tuples(COUNTS, COUNTS, COUNTS))
def test_cells_are_all_combinations_once(counts: tuple[int, int, int]) -> None:
    first, second, own = ([str(value) for value in range(count)] for count in counts)
    axes = read_axes([f"n={','.join(first)}", f"width={','.join(second)}", f"beam_search.expand={','.join(own)}"])
    cells = cells_of(PROGRAMS, axes)
    assert len(cells) == len(set(cells)) == len(first) + len(second) * len(own)
    assert len({cell.name for cell in cells}) == len(cells)
    beams = [tuple(dict(cell.settings).values()) for cell in cells if cell.program == "beam_search"]
    assert beams == list(product(second, own))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["m=1"], "no program has the parameter `m`"),
        (["widht=1"], "did you mean `width`"),
        (["best_of_n.width=1"], "program `best_of_n` has no parameter `width`"),
        (["beam.width=1"], "the sweep has no program `beam`"),
        (["n"], r"takes \[PROGRAM.\]NAME=VALUE,…, not `n`"),
        (["=1"], "takes"),
        ([".n=1"], "takes"),
        (["n=1", "n=2"], "`--set` gives `n` twice"),
        (["n=1,1"], "`--set n=…` names the value `1` twice"),
        ([f"n={','.join(map(str, range(1001)))}"], "more than 1,000 cells"),
    ],
)
def test_mistakes(settings: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cells_of(PROGRAMS, read_axes(settings))


def test_large_grids_are_refused_before_they_are_made() -> None:
    many = ",".join(map(str, range(200)))
    axes = read_axes([f"width={many}", f"expand={many}", f"problem={many}"])
    assert prod(len(axis.values) for axis in axes) == 8_000_000
    with pytest.raises(UsageError, match="more than 1,000 cells"):
        cells_of(PROGRAMS, axes)

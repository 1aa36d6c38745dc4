"""The benchmark of the batch surface: what a program asks is written down, given again, and judged by the slowest."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.engine.batch_surface import Surfaces, asked, rate, text_of
from benchmarks.search.planned import plan_of, problems
from qpdsl.executor.models.load import load
from qpdsl.model_location import locate
from qpdsl.planner.optimize.batch_surface import Work

MINI = "zoo/counting-mini"
SMALL, MIDDLE, LARGE = (0.5, 4, 64), (0.5, 16, 64), (0.75, 16, 64)
FOUND = Surfaces(
    ("llm", "prm"),
    {"llm": {SMALL: 1.0, MIDDLE: 4.0, LARGE: 5.0}, "prm": {SMALL: 9.0, MIDDLE: 3.0, LARGE: 3.001}},
    {"llm": {SMALL: 1.0, MIDDLE: 2.0, LARGE: 4.0}, "prm": {SMALL: 9.0, MIDDLE: 3.0, LARGE: 5.0}},
)


def test_the_optimum_is_that_of_the_slowest_model() -> None:
    assert [FOUND.slowest(cell) for cell in (SMALL, MIDDLE, LARGE)] == [1.0, 3.0, 3.001]
    # What is hardly better is no reason for a larger batch.
    assert FOUND.optimum(measured=True) == MIDDLE
    assert FOUND.optimum(measured=False) == LARGE


def test_what_a_program_asks_can_be_asked_again() -> None:
    plan = plan_of("greedy", models={"llm": MINI})
    rows = problems(plan, 2)
    traces, demands = asked(plan, rows)
    (rounds,) = (trace for trace in traces[MINI][:1])
    assert [len(requests) for requests in rounds] == [1] and len(traces[MINI]) == 2
    work = Work.of(demands)
    assert work.decoded > 0 and work.computed > 0 and work.texts == pytest.approx(1)
    model = load(MINI, locate(MINI), "cpu", None)
    assert rate(model, traces[MINI], 1 << 22, 2, 64, time.process_time) > 0
    # The prompts do not fit.
    assert rate(model, traces[MINI], 1 << 12, 2, 64, time.process_time) == 0.0


def test_the_table_and_the_picture(tmp_path: Path) -> None:
    runs = {"usual": {"rate": 2.0, "same": 3}}
    text = text_of("search", 3, 16 << 20, FOUND, runs)
    assert "50% of 16.0 MiB" in text and "| best measured | 50% | 16 | 64 | 3.00 | 2.00 |" in text
    pytest.importorskip("matplotlib")
    from benchmarks.engine.surface_picture import draw

    best = FOUND.optimum(measured=True), FOUND.optimum(measured=False)
    draw(FOUND.models, FOUND.measured, FOUND.estimated, best, tmp_path / "surface.svg")
    assert (tmp_path / "surface.svg").read_text().count("<svg") == 1

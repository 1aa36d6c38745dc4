"""The synthetic harness has the paper's figures, and the router keeps to its goal on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.routing import harness, synthetic
from benchmarks.routing.harness_tables import GOAL, PUBLISHED
from benchmarks.routing.regret import regret

pytestmark = pytest.mark.unshipped


def test_the_cost_model_has_the_published_figures() -> None:
    one = synthetic.latencies(np.array([256.0, synthetic.VOCABULARY]))
    assert one[0, synthetic.DENSE] == pytest.approx(0.628)
    assert one[0, synthetic.SPARSE] == pytest.approx(0.051, abs=5e-4)
    assert one[1, synthetic.SPARSE] == pytest.approx(one[1, synthetic.DENSE])
    # Over K log-uniform, by its quantiles.
    allowed = synthetic.VOCABULARY ** ((np.arange(20_000) + 0.5) / 20_000)
    refined = synthetic.refined(allowed).mean()
    assert refined == pytest.approx(0.35, abs=1e-4)
    assert synthetic.amortized(refined) == pytest.approx(0.259, abs=1e-3)
    assert 256 * (0.628 - synthetic.amortized(refined)) == pytest.approx(94.5, abs=0.2)
    losses = synthetic.latencies(allowed)
    ratios = losses.mean(0) / losses.min(1).mean()
    assert ratios[synthetic.SPARSE] == pytest.approx(PUBLISHED["sparse"], abs=1e-4)
    assert ratios[synthetic.DENSE] == pytest.approx(PUBLISHED["dense"], rel=0.02)


def test_the_router_is_within_its_goal_if_it_takes_a_millionth_of_a_second() -> None:
    """How long it takes the benchmark measures."""
    reports = []
    for seed in range(20):
        steps = synthetic.draw(harness.STEPS, seed)
        router = harness.routed(harness.linear(harness.GUESS))
        reports.append(regret(steps.expected, harness.walk(router, steps)[0], charge=synthetic.WEIGHT * 1e-3))
        assert router.asked < 60
    assert np.mean([report.over_oracle for report in reports]) < GOAL
    # It is told nothing of the arm that it does not take, and is better than any fixed one.
    assert max(report.static for report in reports) < 0


def test_the_command_writes_page_plot_and_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["harness", "--quick", "--output", str(tmp_path)])
    harness.main()
    record = json.loads((tmp_path / f"{harness.FILE}.json").read_text(encoding="utf-8"))
    page = (tmp_path / f"{harness.FILE}.md").read_text(encoding="utf-8")
    assert record["seeds"] == 2
    assert "| 3: the router, with what it takes |" in page
    assert (tmp_path / f"{harness.FILE}.svg").read_text(encoding="utf-8").startswith("<?xml")

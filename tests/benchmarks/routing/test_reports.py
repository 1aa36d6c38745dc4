"""What choices came to, and choices that a run recorded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.routing.regret import cumulative, regret, variation
from benchmarks.routing.route_trace import choices_of, same_choices
from qpdsl.executor.kernels.llvm.compile import vector_width
from tests.support.cli import Run

pytestmark = pytest.mark.unshipped


def test_regret_of_a_trace_worked_out_by_hand() -> None:
    losses = np.array([[1.0, 2.0, 9.0], [3.0, 1.0, 9.0], [2.0, 4.0, 9.0], [2.0, 4.0, 9.0]])
    report = regret(losses, [0, 0, 1, 0], charge=0.5)
    assert report.shares == (0.75, 0.25, 0.0)
    assert report.fixed == (2.0, 2.75, 9.0)
    assert (report.best_fixed, report.oracle) == (0, 1.5)
    assert report.loss == 2.5 + 0.5
    # Taken 10 and charged 2: over the best fixed arm's 8, and over the oracle's 6.
    assert (report.static, report.dynamic) == (4.0, 6.0)
    assert report.variation == 2.0 + 3.0 + 0.0
    assert report.over_oracle == 2.0
    assert cumulative(losses, [0, 0, 1, 0], 0.5).tolist() == [0.5, 3.0, 5.5, 6.0]
    assert json.loads(json.dumps(report.as_json()))["best_fixed"] == 0
    assert variation(losses, smooth=2) == 2.5
    for taken in ([], [0, 0, 1], [0, 0, 1, 3]):
        with pytest.raises(ValueError):
            regret(losses, taken)
    with pytest.raises(ValueError, match="known"):
        regret(np.full((1, 2), np.nan), [0])


@pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")
def test_the_choices_of_a_run_replay(qpdsl: Run, tmp_path: Path) -> None:
    """What a run's policy saw is all that its choices depend on, whatever the clock said."""
    trace = tmp_path / "run.jsonl"
    note = "note=Ben is 40. His tags are tea and rain."
    args = ("run", "constrained_json", "--set", note, "--no-greedy", "--no-statistics", "--trace", trace)
    ran = qpdsl(*args, "--router", "lin_ucb")
    assert ran.code == 0, ran.err
    ((model, router), choices), *others = choices_of(trace).items()
    assert (model, router, others) == ("zoo/counting", "lin_ucb", []) and len(choices) > 10
    assert same_choices(choices) == len(choices)
    assert same_choices([choice._replace(loss=1 - choice.loss) for choice in choices]) < len(choices)

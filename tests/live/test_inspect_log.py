"""The log of a saved run under inspect_ai's own reader."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from qpdsl.runs.graders.grader import EqualAnswer
from qpdsl.runs.store.recording import Recording
from qpdsl.runs.store.run_folder import RunFolder
from tests.live.environments import python_with
from tests.support.cli import Run
from tests.support.saved_runs import inputs, outcome, record

pytestmark = pytest.mark.live

READ = """
import sys
from inspect_ai.log import read_eval_log, write_eval_log
log = read_eval_log(sys.argv[1])
write_eval_log(log, sys.argv[1].replace(".json", ".eval"))
for sample in read_eval_log(sys.argv[1].replace(".json", ".eval")).samples:
    scores = {name: score.value for name, score in (sample.scores or {}).items()}
    print(sample.id, sample.output.completion, scores, sample.error and sample.error.message)
print(log.eval.task, log.results.scores[0].metrics["accuracy"].value)
"""


def test_its_own_reader_opens_a_log(qpdsl: Run, runs: RunFolder, tmp_path: Path) -> None:
    python = python_with("inspect_ai")
    with Recording.begin(runs, record(), inputs(10), EqualAnswer()) as kept:
        kept.add(0, outcome(0, answer="5", correct=False))
        kept.add(1, outcome(1, error="timed out", answer=None))
        kept.add(2, outcome(2, answer="2", correct=True))
    log = tmp_path / "log.json"
    assert qpdsl("runs", "export", "last", "--as", "inspect", "--output", log).code == 0
    done = subprocess.run([python, "-c", READ, log], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        "row 0 5 {'equal': 'I'} None",
        "row 1  {} timed out",
        "row 2 2 {'equal': 'C'} None",
        "p 0.5",
    ]

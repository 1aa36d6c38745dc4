"""`qpdsl run --cluster`: what is refused, and a run whose driver is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from qpdsl.runs.store.run_folder import RunFolder
from tests.support.cli import Run, write_rows
from tests.support.forked import MAIN, Forks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cluster", "local:2"], "`--cluster` needs `--input`"),
        (["--allow-mixed"], "`--allow-mixed` needs `--cluster`"),
        (["--input", "counting-500", "--cluster", "here:2"], "names no cluster"),
        (["--input", "counting-500", "--cluster", "local:2", "--router", "lin_ucb"], "`--router` does not go with"),
        (["--input", "counting-500", "--cluster", "local:2", "--analyze"], "`--analyze` does not go with"),
        (
            ["--input", "counting-500", "--cluster", "local:2", "--max-tokens-total", "9"],
            "`--max-tokens-total` does not go with `--cluster`: each replica would spend as much",
        ),
        (
            ["--input", "counting-500", "--cluster", "local:2", "--device", "cuda:1", "--no-greedy"],
            "`--device cuda:1` is one GPU",
        ),
    ],
)
def test_what_is_refused(qpdsl: Run, sampled: Path, options: list[str], message: str) -> None:
    ran = qpdsl("run", sampled, *options)
    assert ran.code == 2
    assert message in ran.err


def test_a_killed_driver_leaves_no_replica_and_is_gone_on_with(
    qpdsl: Run, forks: Forks, sampled: Path, tmp_path: Path
) -> None:
    """The replicas end by themselves, and `--resume` runs what is left, without a cluster too."""
    output = tmp_path / "out.jsonl"
    # So many that the run cannot have ended between two looks at it.
    rows = [{"problem": f"Mia has {n} boxes with 4 cards in each box. How many cards?"} for n in range(24)]
    problems = write_rows(tmp_path / "problems.jsonl", rows)
    arguments = ["run", sampled, "--input", problems, "--output", output, "--set", "limit=200"]
    driver = forks.start(tmp_path / "driver", MAIN, *arguments, "--concurrency", "1", "--cluster", "local:2")
    try:
        _wait_for(lambda: _finished_rows() >= 1 or not driver.alive)
        assert driver.alive, driver.err
        replicas = _children(driver.pid)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        forks.ended([driver])
    assert len(replicas) == 2
    _wait_for(lambda: not any(map(_is_alive, replicas)))
    assert not output.exists()
    ran = qpdsl(*arguments, "--resume")
    assert ran.code == 0, ran.err
    resumed = output.read_bytes()
    assert qpdsl(*arguments, "--overwrite").code == 0
    assert output.read_bytes() == resumed


def _finished_rows() -> int:
    return max((info.totals.done for info in RunFolder().infos() if info.writing), default=0)


def _children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _is_alive(process: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, 0)
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2]
    return False


def _wait_for(condition: object, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)

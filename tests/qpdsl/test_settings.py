"""Settings that the machine, or nobody, can have."""

from __future__ import annotations

from typing import Any

import pytest

import qpdsl as qp
from qpdsl import settings
from qpdsl.executor.engine.memory import budget
from qpdsl.settings import check_memory, check_threads, check_timeout
from qpdsl.threads import cores
from tests.support.cli import Run


def test_as_many_threads_as_there_are_cores() -> None:
    check_threads(None)
    check_threads(cores())
    for threads in (cores() + 1, 100_000, 10**30):
        with pytest.raises(qp.ArgumentError, match=f"`threads` takes at most {cores()}, as many as"):
            check_threads(threads)


def test_as_much_memory_as_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "main_memory", lambda: 8 << 30)
    for fine in (None, 1, 8 << 30, "8GiB", "100%"):
        check_memory(fine)
    for amount in ((8 << 30) + 1, 10**15, "9GiB", "900TiB"):
        with pytest.raises(qp.ArgumentError, match=r"more memory than there is: it asks for .*, there is 8\.0 GiB"):
            check_memory(amount)
        check_memory(amount, "cuda")
    with pytest.raises(qp.ArgumentError, match="is no amount of memory"):
        check_memory("9" * 400)


@pytest.mark.parametrize("seconds", [0, -1, True, "3", float("nan"), float("inf"), 10**400])
def test_what_is_no_time_out(seconds: Any) -> None:
    with pytest.raises(qp.ArgumentError, match="`row_timeout` takes seconds, more than 0"):
        check_timeout(seconds)


def test_a_time_out() -> None:
    for seconds in (None, 1, 0.01, settings.LONGEST_TIMEOUT):
        check_timeout(seconds)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--threads", "100000", "`threads` takes at most"),
        ("--kv-memory", "900TiB", "`kv_bytes` is more memory than there is"),
        ("--row-timeout", "0", "`row_timeout` takes seconds"),
        ("--row-timeout", "nan", "`row_timeout` takes seconds"),
    ],
)
def test_on_the_command_line(qpdsl: Run, option: str, value: str, message: str) -> None:
    ran = qpdsl("run", "greedy", "--set", "problem=x", option, value)
    assert ran.code == 2 and message in ran.err

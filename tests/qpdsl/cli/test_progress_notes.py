"""What is said of a command that takes long."""

from __future__ import annotations

import dataclasses

import pytest

from qpdsl.cli import progress_notes as module
from qpdsl.cli.progress_notes import ProgressNotes
from qpdsl.executor.events.events import (
    EngineFigures,
    EngineStepped,
    InstanceStarted,
    ModelsLoaded,
    Preparing,
    ServerReported,
)
from qpdsl.executor.events.stream import EventStream

DEAD = ServerReported(
    at=100.0, model="llm", in_flight=0, limit=8, queued=2, requests=2, retries=1, replayed=0, sampled_tokens=0,
    again=2, why="http://host/v1 cannot be reached", failing=1.0,
)  # fmt: skip


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(module, "say", lines.append)
    monkeypatch.setattr(module, "is_terminal", lambda stream: False)
    monkeypatch.setattr(module, "MOMENT", 2.0)
    monkeypatch.setattr(module, "OFTEN", 30.0)
    return lines


def test_a_step_is_said_once_it_lasts(said: list[str]) -> None:
    stream = EventStream()
    progress = ProgressNotes(stream, 600.0)
    stream.emit(Preparing(at=100.0, step="planning"))
    progress._speak(101.0)
    stream.emit(Preparing(at=101.5, step="loading llm"))
    progress._speak(103.0)
    assert said == []
    progress._speak(103.6)
    progress._speak(110.0)
    assert said == ["loading llm …"]
    stream.emit(Preparing(at=110.5, step="loading llm: m (compiling and checking its kernels)"))
    progress._speak(112.0)
    progress._speak(112.6)
    assert said.pop() == "loading llm: m (compiling and checking its kernels) …" and len(said) == 1
    # A count that goes on is one step.
    stream.emit(Preparing(at=120.0, step="warming up: 1 of 9"))
    progress._speak(122.0)
    stream.emit(Preparing(at=123.0, step="warming up: 2 of 9"))
    progress._speak(126.0)
    progress._speak(152.0)
    assert said[1:] == ["warming up: 1 of 9 …", "warming up: 2 of 9 …"]
    stream.emit(ModelsLoaded(at=153.0, models=("llm",), seconds=1.0))
    progress._speak(300.0)
    assert len(said) == 3


def test_rows_are_told_now_and_then_where_there_is_no_bar(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "monotonic", lambda: 100.0)
    stream = EventStream()
    progress = ProgressNotes(stream, 600.0)
    with progress.of_rows(20, 3):
        progress.rows_done(2, 65.0)
        stream.emit(EngineStepped(at=104.0, report=EngineFigures("m", 1, 72, 0, 1, 9, 0)))
        progress._speak(105.0)
        assert said == []
        progress._speak(135.0)
        progress._speak(136.0)
    assert len(said) == 1 and said[0].startswith("5/20 rows")


def test_the_tokens_of_one_answer_are_told(said: list[str]) -> None:
    stream = EventStream()
    progress = ProgressNotes(stream, 600.0)
    with progress.of_answer():
        stream.emit(InstanceStarted(at=100.0, instance="1"))
        stream.emit(EngineStepped(at=104.0, report=EngineFigures("m", 1, 72, 0, 1, 9, 0)))
        progress._speak(104.5)
        assert said == []
        progress._speak(105.0)
        progress._speak(106.0)
    assert said == ["72 tokens so far, 72 tokens/s"]
    progress._speak(300.0)
    assert len(said) == 1


def test_tokens_of_servers_count_and_their_silence_is_told(said: list[str]) -> None:
    stream = EventStream()
    progress = ProgressNotes(stream, 600.0)
    stream.emit(DEAD)
    progress._speak(100.5)
    assert said == []
    progress._speak(112.0)
    progress._speak(113.0)
    assert said == ["http://host/v1 cannot be reached: no answer for 0:13; gives up after 10:00"]
    assert "no answer for 1:01; gives up after 10:00" in progress.words(160.0)
    # It answers again, while others of its requests are still to be sent once more.
    stream.emit(dataclasses.replace(DEAD, at=170.0, sampled_tokens=50, failing=0.0))
    assert progress.words(171.0) == "0/0 rows 50 tokens 50 tokens/s"


def test_a_server_that_took_requests_and_gives_no_token_is_told(said: list[str]) -> None:
    stream = EventStream()
    progress = ProgressNotes(stream, 600.0)
    at_work = dataclasses.replace(
        DEAD, model="vllm:http://host/v1#m", in_flight=2, queued=0, again=0, why=None, failing=0.0
    )
    with progress.of_rows(20, 3):
        stream.emit(at_work)
        stream.emit(dataclasses.replace(at_work, at=110.0, sampled_tokens=40))
        assert progress.words(110.0) == "3/20 rows 40 tokens 4 tokens/s"
        stream.emit(dataclasses.replace(at_work, at=116.0, sampled_tokens=40, quiet=6.0))
        assert "no token" not in progress.words(118.0)
        progress._due = 150.0
        progress._speak(150.0)
        assert said == ["3/20 rows 40 tokens no token from http://host/v1 for 0:40"]
        stream.emit(dataclasses.replace(at_work, at=160.0, sampled_tokens=80))
        assert progress.words(160.0) == "3/20 rows 80 tokens 1 tokens/s"


def test_the_time_in_which_a_server_was_silent_makes_no_rate(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = EventStream(), [90.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    progress = ProgressNotes(stream, 600.0)
    with progress.of_rows(20, 3):
        progress.rows_done(2, 30.0)
        stream.emit(DEAD)
        now[0] = 299.0
        assert progress.worked() == 99.0
        stream.emit(dataclasses.replace(DEAD, at=299.0, failing=0.0))
        now[0] = 301.0
        assert progress.worked() == 101.0 and progress.words(301.0).endswith("0:19 left")
        assert progress.words(330.0).endswith(" longer than expected")
        # A request that has to wait for a moment is no silence.
        stream.emit(dataclasses.replace(DEAD, at=302.0))
        stream.emit(dataclasses.replace(DEAD, at=302.5, failing=0.0))
        now[0] = 303.0
        assert progress.worked() == 103.0


def test_nothing_is_said_of_a_quiet_process(said: list[str]) -> None:
    stream = EventStream()
    with ProgressNotes(stream, 600.0, quiet=True, verbose=True).speaking():
        stream.emit(Preparing(at=0.0, step="planning"))
    assert said == []

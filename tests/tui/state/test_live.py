"""A run that goes on: attached to over its socket, ending while it is watched, gone, left to itself."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from qpdsl.cli import live
from qpdsl.cli.live import Server
from qpdsl.errors import UsageError
from qpdsl.executor.events.events import Event, Expanded, InstanceStarted, ReplicaGone, RowDone, RunEnded
from qpdsl.executor.events.stream import EventStream
from qpdsl.tui.state.event_source import SocketSource
from qpdsl.tui.widgets.questions import Leave
from tests.support.tui.screen import dashboard, press, settle
from tests.support.tui.traces import recorded

PATIENCE = 20.0


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QPDSL_RUNTIME_DIR", str(tmp_path / "rt"))
    return tmp_path / "rt"


def stream_of(events: list[Event]) -> EventStream:
    stream = EventStream()
    stream.zero = 0.0
    for event in events:
        stream.emit(event)
    return stream


async def until(source: SocketSource, met: object) -> None:
    deadline = time.monotonic() + PATIENCE
    while not met() and time.monotonic() < deadline:  # type: ignore[operator]
        await asyncio.sleep(0.02)
    assert met()  # type: ignore[operator]


def test_the_socket_is_its_users_alone(runtime: Path) -> None:
    server = Server(EventStream())
    try:
        assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
        assert [run.pid for run in live.live_runs()] == [os.getpid()]
    finally:
        server.close()
    assert live.live_runs() == [] and not server.path.exists()


@pytest.mark.parametrize("kind", ["open", "link"])
def test_a_folder_that_others_can_enter_is_refused(runtime: Path, tmp_path: Path, kind: str) -> None:
    if kind == "open":
        runtime.mkdir()
        runtime.chmod(0o755)
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        runtime.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="not a folder of yours alone"):
        live.folder()


def test_sockets_of_dead_runs_are_taken_away(runtime: Path) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    path = live.folder() / f"{done.pid}.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert live.live_runs() == [] and not path.exists()
    # What is no socket is somebody's file, whatever its name.
    path.write_text("precious")
    assert live.live_runs() == [] and path.read_text() == "precious"


def test_who_comes_late_sees_what_was_and_what_comes(runtime: Path) -> None:
    events = recorded()
    stream = stream_of(events[:200])
    server = Server(stream)

    async def main() -> None:
        source = SocketSource(server.path)
        async with dashboard(source) as pilot:
            await until(source, lambda: source.state.changes >= 200)
            assert "running" in await settle(pilot)
            for event in events[200:]:
                stream.emit(event)
            await until(source, lambda: source.state.ended is not None)
            shown = await press(pilot, "2")
            assert "✔ done" in shown and "6/6 rows" in shown and "count-021" in shown
            assert "★" in await press(pilot, "3")
            server.close()
            await until(source, lambda: source.gone)
            assert "✔ done" in await settle(pilot)
            await press(pilot, "q")
            assert not pilot.app.is_running

    try:
        asyncio.run(main())
    finally:
        server.close()


def test_a_run_that_is_killed_is_said_to_be_gone() -> None:
    server = Server(stream_of(recorded()[:50]))

    async def main() -> None:
        source = SocketSource(server.path)
        async with dashboard(source) as pilot:
            await until(source, lambda: source.state.changes >= 50)
            server.close()
            await until(source, lambda: source.gone)
            assert "the run is gone" in await settle(pilot)

    asyncio.run(main())


@pytest.mark.parametrize(("key", "leave"), [("h", Leave.HERE), ("b", Leave.BEHIND), ("s", Leave.STOP)])
def test_leaving_asks_what_becomes_of_the_run(key: str, leave: Leave) -> None:
    server = Server(stream_of(recorded()[:50]))

    async def main() -> None:
        async with dashboard(SocketSource(server.path), asks=lambda: True) as pilot:
            assert "still going" in await press(pilot, "q")
            assert "still going" not in await press(pilot, "escape") and pilot.app.is_running
            await press(pilot, "q")
            await press(pilot, key)
            assert pilot.app.return_value is leave

    try:
        asyncio.run(main())
    finally:
        server.close()


def test_details_are_told_only_while_somebody_reads_them() -> None:
    stream = EventStream()
    assert not stream.detailed
    seen: list[Event] = []
    light = stream.subscribe(seen.append)
    assert not stream.detailed
    heavy = stream.subscribe(seen.append, details=True)
    assert stream.detailed
    stream.emit(Expanded(instance="1", operator="1", candidates=()))
    assert len(seen) == 1
    heavy()
    light()
    stream.emit(InstanceStarted(instance="2"))
    assert len(seen) == 1 and not stream.detailed


def test_events_wait_for_patient_readers_and_keep_their_order() -> None:
    stream = EventStream()
    first, second, late, prompt = (list[Event]() for _ in range(4))
    end = stream.subscribe(first.append, details=True, patient=True)
    stream.subscribe(second.append, patient=True)
    started = [InstanceStarted(instance=str(number)) for number in range(600)]
    made = [Expanded(instance="1", operator="1", candidates=()) for _ in range(2)]
    stream.emit(started[0])
    stream.emit(lambda: made)
    assert first == []
    stream.deliver()
    assert first == [started[0], *made] and second == [started[0]]
    # Not without bound; and what tells of the run as a whole waits for nothing.
    for event in started[1:]:
        stream.emit(event)
    assert 300 < len(second) < 600
    stream.emit(ReplicaGone(replica="1", why="lost"))
    assert second[:-1] == started
    # Who comes late, who leaves, and who is not patient miss nothing and see nothing twice.
    stream.emit(started[0])
    stream.subscribe(late.append, history=True, patient=True)
    stream.emit(started[1])
    end()
    stream.emit(started[2])
    stream.subscribe(prompt.append)
    stream.emit(started[3])
    assert len(late) == 607 and late[-3:] == second[-3:] == started[1:4]
    assert first[-2:] == started[:2] and prompt == started[3:4]


def test_whoever_has_events_delivered_waits_for_those_that_another_thread_hands_on() -> None:
    stream, entered, go, told = EventStream(), threading.Event(), threading.Event(), list[Event]()
    event = InstanceStarted(instance="1")

    def made() -> list[Event]:
        entered.set()
        go.wait(5)
        return [event]

    stream.subscribe(told.append, patient=True)
    stream.emit(made)
    feed = threading.Thread(target=stream.deliver)
    feed.start()
    entered.wait(5)
    threading.Timer(0.05, go.set).start()
    stream.deliver(blocking=False)
    assert told == []
    stream.deliver()
    assert told == [event]
    feed.join()


def test_an_event_that_comes_while_a_prompt_reader_is_told_the_history_is_neither_late_nor_lost() -> None:
    stream, seen = EventStream(), list[Event]()
    events = [InstanceStarted(instance=str(number)) for number in range(3)]

    def read(event: Event) -> None:
        seen.append(event)
        if event is events[0]:
            # As from another thread: nobody is prompt yet.
            stream.emit(events[1])

    stream.emit(events[0])
    stream.subscribe(read, history=True)
    assert seen == events[:2]
    stream.emit(events[2])
    assert seen == events


def test_the_history_is_bounded_and_its_sums_are_kept() -> None:
    events = [event for event in recorded() if not isinstance(event, RunEnded)]
    small = EventStream(capacity=20, details=5)
    small.zero = 0.0
    for event in events:
        small.emit(event)
    earlier: list[Event] = []
    small.subscribe(earlier.append, history=True)
    assert len(earlier) < 60 and sum(isinstance(event, RowDone) for event in earlier) == 6
    assert type(earlier[0]).__name__ == "RunStarted" and type(earlier[1]).__name__ == "Earlier"

    from qpdsl.tui.state.run_state import RunState

    late, whole = RunState(), RunState()
    for event in earlier:
        late.add(event)
    for event in events:
        whole.add(event)
    assert late.done == whole.done
    for id_, totals in whole.operators.items():
        assert late.totals(id_).rows_out == totals.rows_out and late.totals(id_).tokens == totals.tokens
        assert late.totals(id_).counts == totals.counts
    for name, model in whole.models.items():
        own = late.models[name]
        assert (own.steps, own.prefill_tokens, own.decode_tokens) == (
            model.steps,
            model.prefill_tokens,
            model.decode_tokens,
        )
        assert own.busy == pytest.approx(model.busy)
    assert late.missed_events == len(events) - len(earlier) + 1


def test_a_reader_that_cannot_keep_up_is_told_what_it_missed() -> None:
    from qpdsl.executor.events.trace import Feed

    stream, lines = EventStream(), []
    feed = Feed(stream, lines.append, capacity=10)
    for number in range(5000):
        stream.emit(InstanceStarted(instance=str(number)))
    feed.close()
    text = b"".join(lines).decode()
    assert '"kind":"Lost"' in text and text.count("InstanceStarted") < 5000

"""A dashboard that fails: the run goes on, the terminal is put back, and the user is told how to see it again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pexpect
import pytest

from qpdsl.cli.console import keep_streams
from qpdsl.cli.exits import Exit
from qpdsl.cli.live import LiveRun
from qpdsl.cli.runs import dashboard
from qpdsl.tui import app
from qpdsl.tui.app import DashboardFault
from tests.support.cli import Run, Terminal
from tests.support.paths import ROOT
from tests.support.tui.traces import BEAM

# A drawing fails, or the events fail to come, or there is no screen, or Textual fails to put the terminal back.
SCRIPT = """
import sys, termios
from pathlib import Path
from qpdsl.tui import app
from qpdsl.tui.state.event_source import Player
from qpdsl.tui.state.event_source import ReplaySource

def fail(*args):
    raise KeyError("\\x1b]0;raw\\x07")

async def fail_later(*args):
    fail()

kind = sys.argv[2]
if kind == "drawing":
    app.SearchView.draw = fail
elif kind == "events":
    ReplaySource.follow = fail_later
elif kind == "start":
    app.Dashboard.compose = fail
else:
    app.Dashboard._shutdown = fail_later
before = termios.tcgetattr(0)
try:
    app.replay_trace(Path(sys.argv[1]), paused=True)
except app.DashboardFault as fault:
    print("FAULT", ascii(str(fault)), termios.tcgetattr(0) == before)
"""


@pytest.mark.parametrize("kind", ["drawing", "events", "start", "end"])
def test_the_terminal_is_put_back_and_no_traceback_is_shown(kind: str) -> None:
    env = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    env.pop("QPDSL_DEBUG", None)
    args = ["-c", SCRIPT, str(BEAM), kind]
    shown = pexpect.spawn(sys.executable, args, dimensions=(24, 80), timeout=90, cwd=str(ROOT), env=env)
    if kind in ("drawing", "end"):
        shown.expect("once the run begins")
        shown.send("3" if kind == "drawing" else "q")
    shown.expect("FAULT (.*) (True|False)")
    assert b"KeyError" in shown.match[1] and shown.match[2] == b"True"
    before = shown.before
    shown.expect(pexpect.EOF)
    assert b"Traceback" not in before and b"\x1b]0;raw" not in before
    # Whoever enters the other screen leaves it, and shows the cursor again.
    assert before.count(b"\x1b[?1049h") <= before.count(b"\x1b[?1049l")
    assert before.rfind(b"\x1b[?25h") >= before.rfind(b"\x1b[?25l")


def failing(*args: object) -> None:
    raise DashboardFault("KeyError: \x1b[31m")


def test_a_watched_run_goes_on_and_what_it_prints_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "a\x1b[31m.qp"
    program.write_text("program p(q: text) -> text {\n  chat user=q\n  return q\n}\n", "utf-8")
    monkeypatch.setenv("QPDSL_RUNTIME_DIR", str(tmp_path / "rt"))
    monkeypatch.setattr(app, "watch_process", failing)
    out, err = Terminal(), Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        keep_streams()
        assert dashboard.run_watched(["check", str(program)], "plan") == Exit.OK
    assert out.text.endswith("/a\\u001b[31m.qp: ok\n") and "\x1b" not in out.text + err.text
    assert "the dashboard failed: KeyError: \\u001b[31m (please report it" in err.text
    assert "the run goes on here as process" in err.text and "`qpdsl top " in err.text


def test_a_run_elsewhere_goes_on(qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qpdsl.cli.live.live_runs", lambda: [LiveRun(41, tmp_path / "41.sock", 0.0)])
    monkeypatch.setattr("qpdsl.cli.runs.dashboard.check_terminal", lambda command: None)
    monkeypatch.setattr(app, "watch_socket", failing)
    ran = qpdsl("top", "41")
    assert ran.code == Exit.INTERNAL and "the run goes on; `qpdsl top 41` shows it again" in ran.err

"""What commands print: raw in a pipe, escaped on a terminal, in its width, and in colours where these are wanted."""

from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from qpdsl.cli import main
from qpdsl.cli.console import keep_streams, put, say, wants_colour, width_of
from qpdsl.grammar.printable import cells
from tests.support.cli import Terminal
from tests.support.paths import ROOT

BAD = "a\x1b[31m\u202e\tb\nc"
SEEN = "a\\u001b[31m\\u202e\tb\nc"


def test_data_is_escaped_on_a_terminal_and_notes_everywhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_streams()
    put(BAD, end="")
    say(BAD)
    assert capsys.readouterr() == (BAD, f"{SEEN}\n")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    keep_streams()
    put(BAD)
    put(json.dumps({BAD: BAD}, ensure_ascii=False), end="")
    seen, document = terminal.text.rsplit("\n", 1)
    assert seen == SEEN and json.loads(document) == {BAD: BAD} and "\u202e" not in document


def test_without_streams_data_is_not_lost_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    keep_streams()
    say("b")
    with pytest.raises(OSError):
        put("a")
    assert width_of(None) is None and not wants_colour(None)


class Full(io.StringIO):
    """A stream to a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")


def test_notes_that_nobody_takes_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Full())
    assert main(["run", "greedy", "--bad"]) == 2


@pytest.mark.parametrize(
    ("variables", "terminal", "wanted"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "", "TERM": "dumb"}, True, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_who_wants_colours(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], terminal: bool, wanted: bool, tmp_path: Path
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with (tmp_path / "file").open("w") as file:
        assert wants_colour(Terminal() if terminal else file) == wanted


def test_plans_keep_to_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    main(["explain", "beam_search"])
    assert max(map(cells, capsys.readouterr().out.split("\n"))) > 60
    for arguments in (["beam_search"], ["beam_search", "--verbose"], ["beam_search", "--against", "naive"]):
        terminal = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            assert main(["explain", *arguments]) == 0
        assert max(map(cells, terminal.text.split("\n"))) <= 60
    monkeypatch.delenv("COLUMNS")
    assert width_of(Terminal()) == 80


def test_a_command_ends_with_what_was_to_be_done_at_exit() -> None:
    """Its process is ended without taking Python apart."""
    code = (
        "import atexit, sys, threading, time\nfrom qpdsl.cli import main\natexit.register(print, 'at exit')\n"
        "if sys.argv.pop() == 'threads':\n"
        "    threading.Thread(target=lambda: (time.sleep(0.5), print('thread'))).start()\n"
        "sys.exit(main())"
    )
    for threads in ("none", "threads"):
        ended = subprocess.run(
            [sys.executable, "-c", code, "check", "no_such_program", threads], capture_output=True, text=True, cwd=ROOT
        )
        assert ended.returncode == 2 and "no_such_program" in ended.stderr
        assert ended.stdout.split("\n") == [*(["thread"] if threads == "threads" else []), "at exit", ""]

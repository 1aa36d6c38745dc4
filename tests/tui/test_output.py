"""What goes to the terminal: only what changes, few bytes a second, and only characters that it has."""

from __future__ import annotations

import os
import random
import select
import sys
import time
from pathlib import Path

import pexpect
import pytest
from rich.cells import cell_len, set_cell_size

from qpdsl.tui.changed_cells import ChangedCells
from tests.support.paths import ROOT
from tests.support.tui.bare_terminal import BareTerminal
from tests.support.tui.traces import BEAM, long_run, write

WIDTH, HEIGHT = 24, 6
TEXTS = ("rows", " ", "   ", "▇▇▇", "漢字", "é", "★ done", "a\u0301b", "1,024", "├ ✕ ")
COLOURS = ("", "1;38;2;1;2;3", "38;2;9;9;9;48;2;0;0;0")
BYTES_A_SECOND = 20_000


def drawing(chance: random.Random) -> str:
    """Some pieces of lines, as Textual writes them."""
    out = []
    for _ in range(chance.randrange(1, 8)):
        x, y = chance.randrange(WIDTH - 4), chance.randrange(HEIGHT)
        left, parts = chance.randrange(1, WIDTH - x + 1), []
        while left > 0:
            text, colours = chance.choice(TEXTS), chance.choice(COLOURS)
            text = set_cell_size(text, min(chance.randrange(1, 9), left))
            left -= cell_len(text)
            parts.append(f"\x1b[{colours}m{text}\x1b[0m" if colours else text)
        out.append(f"\x1b[{y + 1};{x + 1}H{''.join(parts)}" + "\n" * chance.randrange(2))
    return "".join(out)


@pytest.mark.parametrize("seed", range(4))
def test_a_terminal_that_gets_the_changes_shows_the_same(seed: int) -> None:
    chance = random.Random(seed)
    whole, changed, cells = BareTerminal(WIDTH, HEIGHT), BareTerminal(WIDTH, HEIGHT), ChangedCells()
    drawings = [drawing(chance) for _ in range(40)]
    for _ in range(150):
        drawn = chance.choice(drawings)
        whole.write(drawn)
        changed.write(cells.changed(drawn))
        assert changed.cells == whole.cells


def test_a_clock_that_goes_on_is_two_cells_and_what_is_unknown_is_written_whole() -> None:
    cells = ChangedCells()
    cells.changed("\x1b[1;1H\x1b[1mrunning 0:09 of 1:00\x1b[0m")
    assert cells.changed("\x1b[1;1H\x1b[1mrunning 0:10 of 1:00\x1b[0m") == "\x1b[1;11H\x1b[0;1m10\x1b[0m"
    odd = "\x1b[1;1H\x1b]8;;file\x1b\\running 0:10"
    assert cells.changed(odd) == odd
    assert "running" in cells.changed("\x1b[1;1Hrunning 0:10")


def bytes_of(shown: pexpect.spawn, seconds: float) -> int:
    count, end = 0, time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([shown.child_fd], [], [], left)[0]:
            count += len(os.read(shown.child_fd, 1 << 16))
    return count


def test_no_screen_writes_more_than_a_slow_line_carries(tmp_path: Path) -> None:
    """A run of some hundred rows a second, played for a second on each screen of 120x40."""
    trace = write(tmp_path / "long.jsonl", list(long_run(60_000))[:12_000])
    env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": str(ROOT)}
    args = ["-m", "qpdsl", "replay", str(trace)]
    shown = pexpect.spawn(sys.executable, args, dimensions=(40, 120), timeout=60, cwd=str(ROOT), env=env)
    shown.expect("operator")
    for screen in "4123":
        shown.send(screen)
        bytes_of(shown, 0.5)
        seconds = 1.0
        count = bytes_of(shown, seconds)
        assert 0 < count <= BYTES_A_SECOND * seconds, f"screen {screen}: {count / seconds:,.0f} bytes a second"
    shown.send("q")
    shown.expect(pexpect.EOF)


def test_a_terminal_without_unicode_gets_signs_in_ascii() -> None:
    env = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    args = ["-m", "qpdsl", "replay", "--end", str(BEAM)]
    shown = pexpect.spawn(sys.executable, args, dimensions=(24, 80), timeout=60, cwd=str(ROOT), env=env)
    shown.expect("operator")
    shown.send("3")
    shown.expect("@ the answer")
    shown.send("q")
    shown.expect(pexpect.EOF)
    args = ["-m", "qpdsl", "explain", "beam_search"]
    explained = pexpect.spawn(sys.executable, args, dimensions=(40, 120), timeout=60, cwd=str(ROOT), env=env)
    explained.expect(pexpect.EOF)
    assert b"\\u25" not in explained.before and b"+ extract" in explained.before

"""What people ask of a search: each question by at most the keys that it should take, read off the screen.

The recorded runs are of five shipped programs; the verifier of one is none, which looks at how sure the model was. The
first three are those of the page about reading a search.
"""

from __future__ import annotations

import asyncio
import re

import pytest

from qpdsl.tui.widgets.bars import SCREENS
from tests.support.paths import ROOT
from tests.support.tui.screen import SMALL, dashboard, press
from tests.support.tui.traces import FOLDER

PAGE = ROOT / "docs" / "use" / "reading_a_search.md"


def asked(name: str, *keys: str, size: tuple[int, int] = SMALL) -> str:
    """The screen after these keys, from the first screen on."""

    async def main() -> str:
        async with dashboard(FOLDER / f"{name}.jsonl", size) as pilot:
            return await press(pilot, *keys)

    return asyncio.run(main())


def key_of(screen: str) -> str:
    return str(SCREENS.index(screen) + 1)


def line_with(shown: str, words: str) -> str:
    return next((line.strip() for line in shown.splitlines() if words in line), f"no `{words}` in\n{shown}")


def test_4_whether_the_engine_is_busy_and_what_it_waits_for() -> None:
    """No key: the largest shares; one: all of them, as one bar."""
    assert re.search(r"decode \d+%", asked("beam_search"))
    shown = asked("beam_search", key_of("engine"))
    words = line_with(shown, "█ decode")
    shares = dict(re.findall(r"(decode|prefill|verifier|Python|idle) ([\d.]+)%", words))
    assert shares.keys() >= {"decode", "prefill", "verifier", "Python"}
    assert sum(map(float, shares.values())) == pytest.approx(100, abs=2)
    bar = shown.splitlines()[2]
    assert {"█", "▓", "▒"} <= set(bar) and len(bar.strip()) == SMALL[0] - 2


def test_5_whether_memory_is_short_and_what_helps() -> None:
    """No key: that sequences gave way; one: how many, and how much more memory would help."""
    assert "⚠ memory" in asked("self_consistency").splitlines()[1]
    shown = " ".join(asked("self_consistency", key_of("engine")).split())
    assert re.search(r"memory is short: \d+ sequences gave way", shown)
    assert re.search(r"give about [\d,]+ MiB more with --kv-memory", shown)
    assert "█ live" in shown and "▒ cached" in shown and "░ free" in shown
    assert "memory" not in asked("beam_search").splitlines()[1]


def test_11_which_step_went_wrong() -> None:
    """One key: the next wrong row, the step at which the score fell, and the cursor there."""
    shown = asked("beam_search", "w")
    assert re.search(r"went wrong at step 3 of 3: 1\.000 → 0\.0\d\d, the first below 0\.5", shown)
    assert line_with(shown, "went wrong here").startswith("▌")


def test_12_whether_the_right_answer_was_there_and_lost() -> None:
    """One key on Rows, a column; one on Search: where it was lost, with the cursor on it."""
    rows = asked("best_of_n_logprob", key_of("rows"))
    assert re.search(r"wrong.*lost, \d+ of 16", rows)
    shown = asked("best_of_n_logprob", "w")
    place = re.search(r"place (\d+) of 16, 1 kept; width (\d+) would have kept it", shown)
    assert place is not None and place[1] == place[2]
    here = line_with(shown, "lost here")
    assert here.startswith("▌") and "right" in here


def test_13_whether_wider_would_have_helped() -> None:
    """One key for the row: the margin at the cut, right answers below it; one for all: pass@k and wider cuts."""
    row = line_with(asked("best_of_n_logprob", "w"), "margin at the cut")
    assert re.search(r"right answers \d+ of 16, \d+ cut", row)
    shown = asked("best_of_n_logprob", "v")
    curve = [float(share) for share in re.findall(r"\d+: ([\d.]+)%", line_with(shown, "pass@k"))]
    assert len(curve) == 5 and curve == sorted(curve)
    taken = re.search(r"taken ([\d.]+)%", shown)
    assert taken is not None and float(taken[1]) < curve[-1]
    assert re.search(r"width \d+ keeps 1", shown)


def test_14_whether_the_verifier_is_good() -> None:
    """One key: AUC, pairs of a row, ties, calibration, and the rows that it misled; enter opens one."""
    good = asked("beam_search", "v")
    auc = re.search(r"AUC +([\d.]+)", good)
    assert auc is not None and float(auc[1]) > 0.9
    assert "calibration   off by" in good and re.search(r"0\.8 to 1\.0 +█+ +100%", good)
    bad = asked("best_of_n_logprob", "v")
    assert "none: these scores are no shares" in bad and "`score logprob" in bad
    pairs = re.search(r"within a row +([\d.]+)% +([\d,]+) of ([\d,]+) pairs ranked right, (\d+) ties", bad)
    assert pairs is not None and float(pairs[1]) < 100
    assert re.search(r"misled +[1-9]", bad)
    assert "lost here" in asked("best_of_n_logprob", "v", "enter")


def test_15_how_the_vote_stood() -> None:
    """One key: the tally, when it was decided, and by how much."""
    shown = line_with(asked("self_consistency", "w", size=(120, 40)), "vote ")
    assert re.match(r"vote (decided after \d+ of 32|open until the last of 32, lead \d+)", shown)
    assert re.search(r" \S+ ×\d+ · .* right", shown)


@pytest.mark.parametrize("program", ["dvts", "rebase"])
def test_every_strategy_says_what_it_is(program: str) -> None:
    """Groups stand side by side, each with its cut; a row that went on more than once says how often."""
    shown = asked(program, "w", size=(200, 60))
    if program == "dvts":
        groups = re.findall(r"group (\d) +[\d.]+ ╎( [\d.]+){3}", shown)
        assert [number for number, _ in groups] == ["0", "1", "2", "3"]
    else:
        assert re.search(r"goes on ×\d", shown) and re.search(r"vote (decided|open).* ×[\d.]+", shown)


def test_the_page_shows_what_the_screens_do() -> None:
    """Its figures too, where they are no matter of time."""
    blocks = re.findall(r"<!-- (\w+) (\w+) -->\n+```text\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    assert len(blocks) == 8
    for program, key, block in blocks:
        shown = asked(program, key_of(key) if key in SCREENS else key)
        timed = key == "engine" or program == "self_consistency"
        for line in block.splitlines():
            assert _plain(line, timed) in _plain(shown, timed), (program, key, shown)


def _plain(text: str, timed: bool) -> str:
    """Without what spaces there are, and where it is a matter of time, without its figures."""
    words = " ".join(text.split())
    return re.sub(r"[\d.]+", "#", words) if timed else words

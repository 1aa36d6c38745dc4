"""`docs/use/whatif.md`: its commands, one after another, print what it shows. `QPDSL_REGENERATE=1` writes it anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.documents import TIMED, check_commands, printed
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "use" / "whatif.md"
# What is another at another time: seconds, which cell is on their front, and how far samples came that were given up.
VARYING = (
    TIMED,
    (re.compile(r"^(samples) .*", re.M), r"\1"),
    (re.compile(r"\d+\.\d{3}( \*)?"), "N"),
    (re.compile(r"\d+\.\d KiB,"), "N KiB,"),
)


def test_the_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QPDSL_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    # Of the table the plot is left out.
    plot = re.compile(r"\n[^\n]*: accuracy by .*?\n\n.*?interval\n", re.S)
    check_commands(PAGE, lambda command: plot.sub("", printed(command, capsys)), VARYING)

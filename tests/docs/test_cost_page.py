"""`docs/tune/cost.md`: its commands print what it shows, and its table of votes is a benchmark's.

`QPDSL_REGENERATE=1` writes what the commands print anew.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from benchmarks.common.folders import RESULTS
from benchmarks.family.decided_thoughts import NAME, VoteFigures, table
from qpdsl.cli import main
from tests.support.documents import check_commands
from tests.support.paths import ROOT
from tests.support.user_cache import own_cache

PAGE = ROOT / "docs" / "tune" / "cost.md"
# A command with what it prints, or the run before, of which the others know.
SHOWN_OR_RUN = re.compile(r"^```(?:console\n\$|sh\n(?=qpdsl run [^\n]* --output)) ?([^\n]*)\n(.*?)^```$", re.M | re.S)
# What is another at another time or on another machine.
VARYING = (
    (re.compile(r"\d[\d.]* (?:µs|ms|s)\b(?: \(?\d+%\)?)?"), "TIME"),
    (re.compile(r", seconds times [\d.]+ by earlier runs"), ""),
    (re.compile(r"\bother [\d.]+ [MG]iB \([\d.]+ [MG]iB\)"), "other"),
    (re.compile(r"of [\d.]+k KV pages|of [\d.]+ GiB"), "of all"),
)


def test_the_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_cache(tmp_path / "cache", monkeypatch)
    # What a run times differs from run to run, and so does what is chosen by it.
    monkeypatch.setattr("qpdsl.session.analysis.keep_times", lambda *given: None)
    monkeypatch.chdir(tmp_path)

    def prints(command: str) -> str | None:
        capsys.readouterr()
        main(shlex.split(command)[1:])
        out = capsys.readouterr().out.replace(f"{ROOT}/", "")
        return None if " --output " in command else out

    check_commands(PAGE, prints, VARYING, commands=SHOWN_OR_RUN)


def test_the_page_has_the_table_of_votes_of_thoughts() -> None:
    figures = json.loads((RESULTS / f"{NAME}.json").read_text("utf-8"))["figures"]
    made = "\n".join(table([VoteFigures(**one) for one in figures]))
    assert f"\n\n{made}\n\n" in PAGE.read_text("utf-8")

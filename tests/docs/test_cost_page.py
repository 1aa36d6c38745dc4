"""`docs/tune/cost.md`: its commands print what it shows, and its table of votes is a benchmark's.

`QPDSL_REGENERATE=1` writes what the commands print anew.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from benchmarks.common.folders import RESULTS
from benchmarks.family.decided_thoughts import NAME, VoteFigures, table
from qpdsl.cli import main
from tests.support.documents import masked
from tests.support.paths import ROOT
from tests.support.user_cache import own_cache

PAGE = ROOT / "docs" / "tune" / "cost.md"
# A command with what it prints, or the run before, of which the others know.
COMMAND = re.compile(
    r"^```console\n\$ ([^\n]*)\n(.*?)^```$|^```sh\n(qpdsl run [^\n]* --output [^\n]*)\n```$", re.M | re.S
)
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
    text = PAGE.read_text("utf-8")
    for command, shown, before in COMMAND.findall(text):
        capsys.readouterr()
        main(shlex.split(command or before)[1:])
        found = capsys.readouterr().out.replace(f"{ROOT}/", "")
        if before:
            continue
        if os.environ.get("QPDSL_REGENERATE"):
            text = text.replace(f"$ {command}\n{shown}```", f"$ {command}\n{found}```", 1)
        else:
            assert masked(found, VARYING) == masked(shown, VARYING), command
    if os.environ.get("QPDSL_REGENERATE"):
        PAGE.write_text(text, "utf-8")


def test_the_page_has_the_table_of_votes_of_thoughts() -> None:
    figures = json.loads((RESULTS / f"{NAME}.json").read_text("utf-8"))["figures"]
    made = "\n".join(table([VoteFigures(**one) for one in figures]))
    assert f"\n\n{made}\n\n" in PAGE.read_text("utf-8")

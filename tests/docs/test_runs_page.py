"""`docs/use/runs.md`: its commands, one after another, print what it shows. `QPDSL_REGENERATE=1` writes it anew."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from qpdsl.cli import main
from qpdsl.runs.store.run_folder import RunFolder
from tests.support.documents import TIMED, masked
from tests.support.paths import ROOT
from tests.support.saved_runs import cut_short
from tests.support.user_cache import own_cache

PAGE = ROOT / "docs" / "use" / "runs.md"
BLOCK = re.compile(r"^```console\n\$ ([^\n]*)\n(.*?)^```$", re.M | re.S)
# The rows that were finished when the first run was killed.
FINISHED = 16
# What is another at another time, on another machine or with another build.
VARYING = (
    (re.compile(r"\d{8}-\d{6}-\w{7}"), "RUN"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    TIMED,
    (re.compile(r"^(machine|engine|file|output|command) .*", re.M), r"\1"),
    (re.compile(r"^plan\n.*?\n\n", re.M | re.S), ""),
)


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command of the page prints: notes, then data."""
    capsys.readouterr()
    main(shlex.split(command)[1:])
    out, err = capsys.readouterr()
    return (err + out).replace(f"{ROOT}/", "")


def test_the_page_shows_what_is_printed(
    runs: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, heading, rest = PAGE.read_text("utf-8").partition("\n## Comparing runs\n")
    assert heading
    # Statistics of other tests would stand in the plan, and a terminal's width in the table.
    own_cache(tmp_path / "cache", monkeypatch)
    monkeypatch.chdir(tmp_path)
    for number, (command, shown) in enumerate(BLOCK.findall(text)):
        found = printed(command, capsys)
        if not number:
            assert runs.ids(), found
            cut_short(runs, FINISHED)
            Path("votes.jsonl").unlink()
            continue
        if os.environ.get("QPDSL_REGENERATE"):
            found = found.replace(str(runs.path), "~/.local/share/qpdsl/runs").replace(f"{tmp_path}/", "")
            found = re.sub(r"^(machine\s+)[^,]*, ", r"\1", found, flags=re.M)
            text = text.replace(f"$ {command}\n{shown}```", f"$ {command}\n{found}```", 1)
        else:
            assert masked(found, VARYING) == masked(shown, VARYING), command
    if os.environ.get("QPDSL_REGENERATE"):
        PAGE.write_text(text + heading + rest, "utf-8")

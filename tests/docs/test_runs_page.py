"""`docs/use/runs.md`: its commands, one after another, print what it shows. `QPDSL_REGENERATE=1` writes it anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qpdsl.runs.store.run_folder import RunFolder
from tests.support.documents import TIMED, check_commands, printed
from tests.support.paths import ROOT
from tests.support.saved_runs import cut_short
from tests.support.user_cache import own_cache

PAGE = ROOT / "docs" / "use" / "runs.md"
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


def test_the_page_shows_what_is_printed(
    runs: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Statistics of other tests would stand in the plan, and a terminal's width in the table.
    own_cache(tmp_path / "cache", monkeypatch)
    monkeypatch.chdir(tmp_path)

    def prints(command: str) -> str | None:
        first = not runs.ids()
        found = printed(command, capsys)
        if first:
            assert runs.ids(), found
            cut_short(runs, FINISHED)
            Path("votes.jsonl").unlink()
        return None if first else found

    def written(found: str) -> str:
        found = found.replace(str(runs.path), "~/.local/share/qpdsl/runs").replace(f"{tmp_path}/", "")
        return re.sub(r"^(machine\s+)[^,]*, ", r"\1", found, flags=re.M)

    check_commands(PAGE, prints, VARYING, part=lambda text: text.partition("\n## Comparing runs\n")[0], written=written)

"""`docs/tune/budgets.md`: its commands print what it shows. `QPDSL_REGENERATE=1` writes it anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qpdsl.runs.store.run_folder import RunFolder
from tests.support.documents import check_commands, printed
from tests.support.paths import ROOT
from tests.support.user_cache import own_cache

PAGE = ROOT / "docs" / "tune" / "budgets.md"
PROGRAM = re.compile(r"^```qp\n(.*?)^```$", re.M | re.S)


def test_the_page_shows_what_is_printed(
    runs: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = PROGRAM.search(PAGE.read_text("utf-8"))
    assert program is not None
    own_cache(tmp_path / "cache", monkeypatch)
    # What a run times differs from run to run, and so does what is chosen by it.
    monkeypatch.setattr("qpdsl.session.analysis.keep_times", lambda *given: None)
    monkeypatch.chdir(tmp_path)
    Path("small.qp").write_text(program[1], "utf-8")
    check_commands(PAGE, lambda command: printed(command, capsys))
    # The warm-up's runs, one a way, and the run itself.
    assert len(runs.ids()) == 4

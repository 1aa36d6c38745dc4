"""`docs/tune/budgets.md`: its commands print what it shows. `QPDSL_REGENERATE=1` writes it anew."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from qpdsl.cli import main
from qpdsl.runs.store.run_folder import RunFolder
from tests.support.documents import masked
from tests.support.paths import ROOT
from tests.support.user_cache import own_cache

PAGE = ROOT / "docs" / "tune" / "budgets.md"
BLOCK = re.compile(r"^```console\n\$ ([^\n]*)\n(.*?)^```$", re.M | re.S)
PROGRAM = re.compile(r"^```qp\n(.*?)^```$", re.M | re.S)


def test_the_page_shows_what_is_printed(
    runs: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text("utf-8")
    program = PROGRAM.search(text)
    assert program is not None
    own_cache(tmp_path / "cache", monkeypatch)
    # What a run times differs from run to run, and so does what is chosen by it.
    monkeypatch.setattr("qpdsl.session.analysis.keep_times", lambda *given: None)
    monkeypatch.chdir(tmp_path)
    Path("small.qp").write_text(program[1], "utf-8")
    for command, shown in BLOCK.findall(text):
        capsys.readouterr()
        main(shlex.split(command)[1:])
        out, err = capsys.readouterr()
        found = (err + out).replace(f"{ROOT}/", "")
        if os.environ.get("QPDSL_REGENERATE"):
            text = text.replace(f"$ {command}\n{shown}```", f"$ {command}\n{found}```", 1)
        else:
            assert masked(found) == masked(shown), command
    if os.environ.get("QPDSL_REGENERATE"):
        PAGE.write_text(text, "utf-8")
    # The warm-up's runs, one a way, and the run itself.
    assert len(runs.ids()) == 4

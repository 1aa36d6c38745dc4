"""`docs/use/whatif.md`: its commands, one after another, print what it shows. `QPDSL_REGENERATE=1` writes it anew."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from qpdsl.cli import main
from tests.support.documents import TIMED, masked
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "use" / "whatif.md"
BLOCK = re.compile(r"^```console\n\$ ([^\n]*)\n(.*?)^```$", re.M | re.S)
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
    text = PAGE.read_text("utf-8")
    monkeypatch.setenv("QPDSL_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    for command, shown in BLOCK.findall(text):
        capsys.readouterr()
        main(shlex.split(command)[1:])
        out, err = capsys.readouterr()
        # Of the table the plot is left out.
        found = re.sub(r"\n[^\n]*: accuracy by .*?\n\n.*?interval\n", "", err + out, flags=re.S)
        if os.environ.get("QPDSL_REGENERATE"):
            text = text.replace(f"$ {command}\n{shown}```", f"$ {command}\n{found}```", 1)
        else:
            assert masked(found, VARYING) == masked(shown, VARYING), command
    if os.environ.get("QPDSL_REGENERATE"):
        PAGE.write_text(text, "utf-8")

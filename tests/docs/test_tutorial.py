"""`docs/start/tutorial.md`: its commands, one after another, print what it shows; `…` stands for any lines."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from qpdsl.cli import main
from tests.support.documents import TIMED, files, is_shown, masked
from tests.support.paths import ROOT
from tests.support.user_cache import own_cache

PAGE = ROOT / "docs" / "start" / "tutorial.md"
COMMAND = re.compile(r"^```console\n\$ ([^\n]*)\n(.*?)^```$", re.M | re.S)
PROGRAM = re.compile(r"`(\w+\.qp)`:\n\n```qp\n(.*?)^```$", re.M | re.S)
# What differs from time to time and from machine to machine.
VARYING = (
    TIMED,
    # The seconds of a sweep, which may be on the front or not.
    (re.compile(r"^(.*% to [\d.]+% +[\d,]+(?: \*)?) +[\d.]+(?: \*)?", re.M), r"\1"),
)


def test_the_session_prints_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_cache(tmp_path / "cache", monkeypatch)
    monkeypatch.setenv("QPDSL_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text("utf-8")
    for name, content in [*files(PAGE).items(), *PROGRAM.findall(text)]:
        Path(name).write_text(content, "utf-8")
    commands = COMMAND.findall(text)
    assert len(commands) == 6
    for command, shown in commands:
        capsys.readouterr()
        main(shlex.split(command)[1:])
        out, err = capsys.readouterr()
        assert is_shown(masked(err + out, VARYING), masked(shown, VARYING)), f"{command}\n{err}{out}"

"""Runs in their folder: how they are listed and found."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpdsl.errors import UsageError
from qpdsl.runs.store.run_file import RunFileError
from qpdsl.runs.store.run_folder import RunFolder, usual_folder
from tests.support.saved_runs import record, recorded


def test_where_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usual_folder() == RunFolder().path
    monkeypatch.delenv("QPDSL_RUNS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert usual_folder() == tmp_path / "qpdsl" / "runs"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert usual_folder() == tmp_path / "home" / ".local" / "share" / "qpdsl" / "runs"
    # A folder that is not there yet is one without runs.
    assert RunFolder().ids() == [] and RunFolder().locked_ids() == []


def test_runs_come_in_the_order_in_which_they_began(runs: RunFolder) -> None:
    late = recorded(runs, 1, started=1.75e9 + 0.002)
    early = recorded(runs, 1, started=1.75e9 + 0.001)
    assert runs.ids() == [early, late]
    assert [info.id for info in runs.infos()] == [early, late]


def test_runs_that_begin_in_one_millisecond_have_ids_of_their_own(
    runs: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter(["00ff", "00ff", "00ff", "0100"])
    monkeypatch.setattr("secrets.token_hex", lambda count: next(drawn))
    for _ in range(2):
        runs.create(record()).close()
    assert [id[-4:] for id in runs.ids()] == ["00ff", "0100"]


def test_a_run_is_found_by_part_of_its_id(runs: RunFolder) -> None:
    first, second = recorded(runs, 1, program="one", started=1.75e9), recorded(runs, 1, program="two", started=1.76e9)
    assert runs.find(first) == runs.find(first[:15]) == runs.find(first[-6:]) == runs.find("last-1") == runs.file(first)
    assert runs.find("last~1") == runs.find("one") == runs.file(first) != runs.find("two")
    assert runs.find("last") == runs.find(str(runs.file(second))) == runs.file(second)
    (runs.path / "stray.qprun").write_text("a file that somebody put there")
    assert runs.find("last") == runs.file(second)
    others = {"2025": "may be one of 2 runs", "nothing": "no saved run", "last-2": "2 are saved", "": "no saved run"}
    for name, words in others.items():
        with pytest.raises(UsageError, match=words):
            runs.find(name)


def test_a_damaged_run_is_told_of_and_the_others_are_listed(runs: RunFolder) -> None:
    sound, hurt = recorded(runs, 1), recorded(runs, 1)
    data = bytearray(runs.file(hurt).read_bytes())
    data[100:2000] = bytes(1900)
    runs.file(hurt).write_bytes(data)
    told: list[RunFileError] = []
    assert [info.id for info in runs.infos(told.append)] == [sound]
    assert len(told) == 1 and str(runs.file(hurt)) in told[0].message
    runs.remove(hurt)
    assert runs.ids() == [sound]
    assert {file.name for file in runs.path.iterdir()} == {runs.file(sound).name}

"""`qpdsl cache` shows what is kept between runs, and removes what is named and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from tests.support.cli import Run


def test_what_is_named_is_removed(qpdsl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert qpdsl("cache").code == Exit.OK
    folder, outside = tmp_path / "cache" / "qpdsl", tmp_path / "outside"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "a").write_bytes(b"12345")
    (folder / "completions.sqlite").write_bytes(b"123")
    (folder / "notes.txt").write_text("mine")
    outside.mkdir()
    (outside / "b").write_text("not ours")
    (folder / "models").symlink_to(outside)
    found = {one["part"]: one for one in json.loads(qpdsl("cache", "--format", "json").out)["parts"]}
    assert (found["kernels"]["files"], found["kernels"]["bytes"], found["completions"]["bytes"]) == (1, 5, 3)
    for wrong, words in ((("--empty",), "name the parts"), (("--empty", "kernel"), "did you mean `kernels`?")):
        ran = qpdsl("cache", *wrong)
        assert ran.code == Exit.USAGE and words in ran.err
    assert qpdsl("cache", "--empty", "kernels").err == "removed 1 files (5 B)\n"
    assert not (folder / "kernels").exists() and (folder / "completions.sqlite").exists()
    assert qpdsl("cache", "--empty", "all").code == Exit.OK
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert (outside / "b").read_text() == "not ours"

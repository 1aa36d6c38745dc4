"""The user's cache folder: whatever lies there, commands go on, say what they cannot use, and write it anew."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.errors import UsageError
from qpdsl.planner.cost.device import nominal
from qpdsl.planner.cost.statistics import STATISTICS_FILE
from qpdsl.session import user_cache
from tests.planner.cost.test_statistics import figures, plan_of
from tests.support.cli import Run


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "qpdsl").mkdir()
    return tmp_path / "qpdsl"


def remember() -> None:
    with user_cache.changing_statistics() as statistics:
        statistics.add(plan_of("greedy"), figures())


def tiny(path: Path) -> None:
    """Statistics as they are written, with every mean near zero."""
    remember()
    data = json.loads(path.read_text())
    for entry in data["programs"].values():
        for means in entry["operators"].values():
            means.update({name: 1e-320 for name, value in means.items() if isinstance(value, float | int)})
    path.write_text(json.dumps(data))


MADE: dict[str, Callable[[Path], object]] = {
    "tiny numbers": tiny,
    "no JSON": lambda path: path.write_text("{"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\0"),
    "nested too deep": lambda path: path.write_text("[" * 100_000),
    "a named pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a link": lambda path: path.symlink_to("elsewhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("what", MADE)
def test_what_cannot_be_used_is_said_and_written_anew(qpdsl: Run, cache: Path, what: str) -> None:
    (cache / "elsewhere").write_text("precious")
    file = cache / STATISTICS_FILE
    MADE[what](file)
    ran = qpdsl("explain", "greedy")
    assert ran.code == Exit.OK and ran.err.startswith(f"note: `{file}` is not used (") and ran.err.count("\n") == 1
    assert user_cache.read_statistics().programs == {}
    if what == "a folder":
        with pytest.raises(UsageError, match="is a directory"):
            remember()
    else:
        remember()
        assert user_cache.read_statistics().programs and user_cache.damaged_files() == []
    assert (cache / "elsewhere").read_text() == "precious"


@pytest.mark.parametrize("what", [name for name in MADE if name != "tiny numbers"])
def test_the_lock_is_opened_as_it_is(cache: Path, what: str) -> None:
    (cache / "elsewhere").write_text("precious")
    lock = cache / f"{STATISTICS_FILE}.lock"
    MADE[what](lock)
    before = lock.read_bytes() if lock.is_file() else None
    remember()
    assert user_cache.read_statistics().programs
    assert (cache / "elsewhere").read_text() == "precious"
    assert before is None or lock.read_bytes() == before


@pytest.mark.parametrize("what", [name for name in MADE if name != "tiny numbers"])
def test_a_device_that_cannot_be_read_was_never_measured(cache: Path, what: str) -> None:
    device = replace(nominal(), measured=True)
    user_cache.write_device(device)
    (file,) = cache.glob("device-*.json")
    file.unlink()
    MADE[what](file)
    assert user_cache.measured_device("cpu", "float32") is None
    (note,) = user_cache.damaged_files()
    assert str(file) in note and "`qpdsl profile` will write it anew" in note


@pytest.mark.parametrize("folder", ["/dev/null", "/dev/null/x"])
def test_a_folder_that_cannot_be_stops_no_run(qpdsl: Run, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    assert user_cache.read_statistics().programs == {} and user_cache.damaged_files() == []
    assert qpdsl("explain", "greedy").err == ""
    with pytest.raises(UsageError, match="cannot make the folder"):
        remember()


def test_a_folder_is_named_from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/mia")
    assert user_cache.folder() == Path("/home/mia/.cache/qpdsl")
    monkeypatch.setenv("HOME", "relative")
    with pytest.raises(UsageError, match="there is no home folder"):
        user_cache.folder()

"""A sample of what `python -m benchmarks.dashboard_drive` does with every program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.dashboard_drive import Drive, all_cases
from tests.support.remote.stub_server import stub
from tests.support.tui.driven import faults_of
from tests.support.user_cache import own_cache


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drive]:
    own_cache(tmp_path / "cache", monkeypatch)
    monkeypatch.setenv("QPDSL_RUNTIME_DIR", str(tmp_path / "rt"))
    with stub("vllm") as server:
        yield Drive(tmp_path, server, 2)


# A search that looks aside, and a vote on a server and as a sweep; the script drives all programs in all places.
@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("programs/lookahead", ("here",)),
        ("programs/self_consistency", ("under_eval", "here", "on_a_server")),
    ],
)
def test_screens_print_what_commands_do(name: str, places: tuple[str, ...], drive: Drive) -> None:
    case = next(case for case in all_cases() if case.name.split(" ")[0] == name)
    if "on_a_server" in places:
        drive.know_the_server()
    for place in places:
        driven = getattr(drive, place)(case)
        assert driven.refusal == ""
        assert faults_of(driven, beside=place == "here" and "under_eval" in places) == [], place

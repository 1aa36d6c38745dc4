"""A sample of what `python -m benchmarks.dashboard_drive` does with every program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.shipped_programs import cases
from tests.support.tui.driven import faults_of

# A search with a verifier, one that looks aside, a tree search, a vote, and two models.
SAMPLE = ("programs/beam_search", "programs/lookahead", "search/puct", "programs/self_consistency", "structure/filter")


@pytest.mark.parametrize("name", SAMPLE)
def test_screens_say_what_the_summary_says_live_late_and_replayed(name: str, tmp_path: Path) -> None:
    case = next(case for case in cases() if case.name.split(" ")[0] == name)
    assert faults_of(case, tmp_path) == []

"""The page about rules and costs shows the table that a benchmark wrote."""

from __future__ import annotations

import json

from benchmarks.common.folders import RESULTS
from benchmarks.family.decided_thoughts import NAME, VoteFigures, table
from tests.support.paths import ROOT


def test_the_page_has_the_table_of_votes_of_thoughts() -> None:
    figures = json.loads((RESULTS / f"{NAME}.json").read_text("utf-8"))["figures"]
    made = "\n".join(table([VoteFigures(**one) for one in figures]))
    assert f"\n\n{made}\n\n" in (ROOT / "docs" / "tune" / "cost.md").read_text("utf-8")

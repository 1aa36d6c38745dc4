"""How often targets keep what they promise: where it is known what is right, and as a page."""

from __future__ import annotations

from dataclasses import asdict

from benchmarks.search.targets import TARGETS, coverage, page
from tests.qpdsl.budgets.made_up import easy_and_hard


def test_what_is_always_right_is_promised_and_holds() -> None:
    seen = easy_and_hard(200)
    found = list(coverage(seen, 50, 3))
    assert [line.target for line in found] == list(TARGETS)
    for line in found:
        assert line.promised == line.promised_half == line.splits == 3 and not line.broken and not line.broken_half
        # The dear way is right of all, and the cheap one of half: the least is to ask it where that is unsure.
        assert line.tokens is not None and line.best is not None and line.best <= line.tokens <= 100
    assert found == list(coverage(seen, 50, 3))
    runs = {
        "cheap": {"correct": "10" * 100, "tokens": [10] * 200},
        "dear": {"correct": "1" * 200, "tokens": [100] * 200},
    }
    record = {"problems": 200, "machine": "a machine", "delta": 0.1, "runs": runs}
    text = "\n".join(page({**record, "coverage": [asdict(line) for line in found]}))
    assert "# Targets (200 problems, 3 splits)" in text and "| 60% | 50, 50 | 100.0% | 100.0%" in text

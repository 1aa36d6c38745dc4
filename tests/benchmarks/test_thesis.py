"""The thesis' protocol: problems spread over levels, run at shares of a memory, and a table of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.search import thesis


def test_one_command_gives_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "--problems 5 --programs greedy --model llm=zoo/counting-mini --shares 0.25 0.5 --memory 64MiB"
    monkeypatch.setattr(sys, "argv", ["thesis", *words.split(), "--output", str(tmp_path)])
    thesis.main()
    record = json.loads((tmp_path / "thesis.json").read_text())
    assert record["spread"] == {str(level): 1 for level in range(1, 6)}
    assert [(line["share"], line["kv_bytes"], line["total"]) for line in record["lines"]] == [
        (0.25, 16 << 20, 5),
        (0.5, 32 << 20, 5),
    ]
    # Memory decides how fast a program is, and never what it answers.
    assert record["lines"][0]["right"] == record["lines"][1]["right"]
    page = (tmp_path / "thesis.md").read_text().splitlines()
    assert "5 problems of counting-500, by `level`: 1 of 1, 1 of 2, 1 of 3, 1 of 4, 1 of 5. Seed 0." in page
    assert sum(line.startswith("| greedy |") for line in page) == 2

"""`docs/tune/gpu.md` shows the estimate and the parts of a run. `QPDSL_REGENERATE=1` writes its table anew."""

from __future__ import annotations

import os
import re

from benchmarks.gpu import run
from benchmarks.gpu.estimate.assumptions import ASSUMED
from benchmarks.gpu.estimate.devices import devices
from benchmarks.gpu.estimate.page import bounds_table, goal_line, kinds_line, steps_table
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "tune" / "gpu.md"
NUMBERS = {13: "thirteen", 14: "fourteen", 15: "fifteen", 16: "sixteen"}


def between(name: str, content: str, text: str) -> str:
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
    assert pattern.search(text)
    return pattern.sub(lambda found: f"{found[1]}{content}\n{found[2]}", text)


def test_the_page_shows_the_estimate() -> None:
    text, device = PAGE.read_text("utf-8"), devices()["H100"]
    shown = between("estimate", steps_table(device), text)
    shown = between("goal", f"{goal_line(device)}\n\n{kinds_line(device)}", shown)
    shown = between("bounds", bounds_table(device), shown)
    if os.environ.get("QPDSL_REGENERATE"):
        PAGE.write_text(shown, "utf-8")
    assert PAGE.read_text("utf-8") == shown
    assert f"[{NUMBERS[len(ASSUMED)]} assumptions]" in text


def test_the_page_lists_the_parts_of_a_run_in_their_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE.read_text("utf-8"), re.M)
    assert [(name, int(seconds)) for name, seconds in rows] == [
        (name, part.seconds) for name, part in run.PARTS.items()
    ]

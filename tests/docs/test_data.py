"""The page about data: its table of published benchmarks is what the code has."""

from __future__ import annotations

import re

from qpdsl.runs.data.known_sets import FORMS
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "use" / "data.md").read_text("utf-8")


def test_every_known_form_stands_in_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\w+) \|$", PAGE, re.M)
    assert dict(rows) == {name: form.grader for name, form in FORMS.items()}

"""Each promise of the page is held by a test of its own, and each of those tests is of a promise."""

from __future__ import annotations

import re

from tests.support.paths import ROOT


def test_each_promise_names_the_test_that_holds_it() -> None:
    page = (ROOT / "docs" / "reference" / "promises.md").read_text("utf-8")
    sections = re.split(r"^## ", page, flags=re.M)[1:]
    named = [re.findall(r"`tests/promises/(test_\w+\.py)`", section) for section in sections]
    assert all(len(names) == 1 for names in named), "a section names one test"
    tests = sorted(path.name for path in (ROOT / "tests" / "promises").glob("test_*.py"))
    assert sorted(name for names in named for name in names) == tests

"""`docs/use/models.md` shows what became of published chat templates. `QPDSL_REGENERATE=1` writes its table anew."""

from __future__ import annotations

import json
import os
import re

from benchmarks.chat_templates import OTHER, table
from benchmarks.common.folders import RESULTS
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "use" / "models.md"
BLOCK = re.compile(r"(?<=<!-- templates -->\n).*(?=<!-- /templates -->)", re.DOTALL)


def test_the_page_has_the_table_of_chat_templates() -> None:
    results = json.loads((RESULTS / "chat_templates.json").read_text("utf-8"))
    text = PAGE.read_text("utf-8")
    shown = BLOCK.sub(lambda _: f"{table(results)}\n", text)
    if os.environ.get("QPDSL_REGENERATE"):
        PAGE.write_text(shown, "utf-8")
    assert PAGE.read_text("utf-8") == shown
    assert f"Of {len(results['templates'])} published templates" in text
    assert not [name for name, row in results["templates"].items() if OTHER in row["cases"].values()]

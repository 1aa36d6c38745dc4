"""The table of `docs/use/remote_models.md` is what real servers answered. `QPDSL_REGENERATE=1` writes it anew."""

from __future__ import annotations

import os
import re

from tests.support.paths import ROOT
from tests.support.remote.recordings import table

PAGE = ROOT / "docs" / "use" / "remote_models.md"
BLOCK = re.compile(r"(?<=<!-- servers -->\n).*(?=<!-- /servers -->)", re.DOTALL)


def test_the_table_is_what_was_recorded() -> None:
    text = PAGE.read_text("utf-8")
    assert BLOCK.search(text)
    written = BLOCK.sub(lambda _: f"\n{table()}\n\n", text)
    if os.environ.get("QPDSL_REGENERATE"):
        PAGE.write_text(written, "utf-8")
    assert written == PAGE.read_text("utf-8")

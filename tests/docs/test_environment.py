"""The page of environment variables lists those that the code reads, and no others."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

# Of click's completion scripts, and from a run to the dashboard that it starts: not for users.
INTERNAL = {"_QPDSL_COMPLETE", "COMP_WORDS", "COMP_CWORD", "QPDSL_WATCHED"}
READ = re.compile(r'(?:environ\.get\(|environ\[|getenv\(|environ\.setdefault\(|envvar=)"(\w+)"|"(\w+)" in os\.environ')


def test_the_page_lists_what_the_code_reads() -> None:
    paths = [
        path for folder in ("grammar", "planner", "executor", "qpdsl", "tui") for path in (ROOT / folder).rglob("*.py")
    ]
    texts = [text for path in paths if "environ" in (text := path.read_text("utf-8")) or "envvar" in text]
    read = {name for text in texts for pair in READ.findall(text) for name in pair if name}
    # Set for libraries where the user has not; nothing of ours reads them.
    read -= {"OMP_WAIT_POLICY", "RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"}
    listed = set(re.findall(r"^\| `(\w+)`", (ROOT / "docs" / "reference" / "environment.md").read_text("utf-8"), re.M))
    assert read - INTERNAL <= listed
    # Some are read by a name that a variable holds.
    assert all(any(f'"{name}"' in text for text in texts) for name in listed)

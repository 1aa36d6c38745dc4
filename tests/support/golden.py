"""Fixtures as pairs of files. `QPDSL_REGENERATE=1 pytest …` writes the expected files anew, to be read before use."""

import os
from pathlib import Path


def check(path: Path, actual: str) -> None:
    """The text must be that of the file."""
    if os.environ.get("QPDSL_REGENERATE"):
        path.write_text(actual + "\n", "utf-8")
    assert actual + "\n" == path.read_text("utf-8")

"""The folder of what qpdsl makes once and keeps, in the user's cache folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def cache_folder() -> Path | None:
    """`qpdsl` in XDG_CACHE_HOME, by default in `~/.cache`; None where there is no home. It need not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # Its specification has relative paths ignored.
    if os.path.isabs(base):
        return Path(base) / "qpdsl"
    with contextlib.suppress(RuntimeError):
        home = Path.home()
        if home.is_absolute():
            return home / ".cache" / "qpdsl"
    return None

"""Where the checkout is, for tests that read its files or run its commands."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "programs"
DATA = PROGRAMS / "data"

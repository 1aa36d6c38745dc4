"""Where the checkout is, and where benchmarks write.

This loads nothing but the standard library: `gpu.run` must have it before torch is there.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "pictures"

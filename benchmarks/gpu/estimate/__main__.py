"""Writes the estimate's tables: `python -m benchmarks.gpu.estimate`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.common.folders import RESULTS
from benchmarks.gpu.estimate.page import figures, page
from benchmarks.gpu.estimate.verdicts import verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description="what steps should take on GPUs, derived on paper")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for gpu_estimate.json and .md")
    parser.add_argument("--results", type=Path, default=RESULTS / "gpu.json", help="what `benchmarks.gpu.run` measured")
    options = parser.parse_args()
    results = json.loads(options.results.read_text("utf-8")) if options.results.is_file() else None
    text = page(results)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "gpu_estimate.json").write_text(json.dumps(figures(), indent=1) + "\n", encoding="utf-8")
    (options.output / "gpu_estimate.md").write_text(text, encoding="utf-8")
    print(text)
    if results is not None:
        print("\n".join(verdict.line() for verdict in verdicts(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

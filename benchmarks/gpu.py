"""Everything that needs a GPU: checks each kernel against its torch twin, then measures. One command, offline.

    python benchmarks/gpu.py [--output DIR] [--only kernels engine] [--checks] [--tune]
    python benchmarks/gpu.py --interpret-check

Needs torch, triton, transformers and this checkout, nothing installed. Writes gpu.json and gpu.md. Exits with 0; with 1
where a check failed; with 2 where there is no CUDA device. `--checks` stops after the checks; `--tune` also looks for
better block sizes; `--interpret-check` runs the checks at small sizes on a CPU, in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# What each part's `run(output, **options) -> dict` measures; it returns its figures, with a table under "markdown".
PARTS = {"kernels": "gpu_kernels", "engine": "gpu_engine"}


def describe() -> dict[str, Any]:
    """The machine: what `machine.describe` says, and the device."""
    import torch
    import triton
    from machine import describe as processor

    found: dict[str, Any] = {**processor(), "triton": triton.__version__, "cuda": torch.version.cuda}
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        found |= {
            "device": device.name,
            "capability": f"{device.major}.{device.minor}",
            "multiprocessors": device.multi_processor_count,
            "memory_gib": round(device.total_memory / 2**30, 1),
            "l2_mib": round(device.L2_cache_size / 2**20, 1),
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="checks and measures everything that needs a GPU")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), default=list(PARTS))
    parser.add_argument("--checks", action="store_true", help="check the kernels, measure nothing")
    parser.add_argument("--tune", action="store_true", help="try other block sizes for decode attention")
    parser.add_argument("--interpret-check", action="store_true", help="check small sizes on a CPU")
    options = parser.parse_args()
    # The checkout's root holds the package, and the tests that know how to make a batch.
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    if options.interpret_check:
        os.environ["TRITON_INTERPRET"] = "1"

    import torch

    if not options.interpret_check and not torch.cuda.is_available():
        print("gpu.py: torch sees no CUDA device; --interpret-check checks the kernels on a CPU", file=sys.stderr)
        return 2
    import gpu_check

    checks = gpu_check.run(small=options.interpret_check)
    record: dict[str, Any] = {"machine": describe(), "checks": checks}
    failed = [check for check in checks if not check["passed"]]
    tables = [gpu_check.table(checks)]
    if not (options.checks or options.interpret_check):
        for name in options.only:
            if not (HERE / f"{PARTS[name]}.py").exists():
                continue
            record[name] = importlib.import_module(PARTS[name]).run(options.output, tune=options.tune)
            tables.append(record[name].pop("markdown"))
            failed += [check for check in record[name].get("checks", []) if not check["passed"]]
    machine = ", ".join(f"{key} {value}" for key, value in record["machine"].items())
    text = "\n\n".join(["# On a GPU", f"Measured on: {machine}.", *tables]) + "\n"
    if not options.interpret_check:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "gpu.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        (options.output / "gpu.md").write_text(text, encoding="utf-8")
    print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

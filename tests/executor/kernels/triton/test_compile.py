"""Every kernel compiles for a GPU, without one, and into code no worse than the committed table says.

The interpreter accepts code that the compiler does not, and shows nothing of what a device would have to execute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.compiled.table import FILE
from tests.support.paths import ROOT

triton = pytest.importorskip("triton")


def check(cache: Path, *options: str) -> tuple[int, str]:
    """The exit code of `--check`, and what it prints; Triton does not compile under its interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu.compiled", "--check", *options],
        cwd=ROOT,
        # What later versions of Triton have as their default: launches say themselves that products and sums fuse.
        env={**environment, "TRITON_CACHE_DIR": str(cache), "TRITON_DEFAULT_FP_FUSION": "0"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout or done.stderr


def test_no_kernel_got_worse(tmp_path: Path) -> None:
    """Compiles the part of the variants for which the compiler would be given something else than for the table."""
    code, printed = check(tmp_path)
    assert code == 0, printed


def test_a_kernel_that_got_worse_is_named(tmp_path: Path) -> None:
    table = json.loads(FILE.read_text(encoding="utf-8"))
    if table["triton"] != triton.__version__:
        pytest.skip("the table was made with another Triton")
    rows = {(row["capability"], row["kernel"], row["form"]): row for row in table["rows"] if row["case"] == "8B bf16"}
    better, absent = rows[90, "gate_kernel", "gate"], rows[89, "gate_kernel", "gate"]
    better["whole"]["instructions"] //= 2
    better["key"] = "of another compilation"
    table["rows"].remove(absent)
    table["rows"].append({**better, "form": "no more"})
    file = tmp_path / "table.json"
    file.write_text(json.dumps(table), encoding="utf-8")
    code, printed = check(tmp_path, "--table", str(file), "--only", "sm_90 gate_kernel: 8B bf16, gate")
    assert code == 1
    worse, missing, idle, _ = printed.splitlines()
    assert worse.startswith("sm_90 gate_kernel: 8B bf16, gate: instructions a block ")
    assert missing == "sm_89 gate_kernel: 8B bf16, gate: is not in the table"
    assert idle == "sm_90 gate_kernel: 8B bf16, no more: is in the table, and nothing launches it"

"""What the compiler made of the kernels, from the table that `benchmarks.gpu.compiled` writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.common.folders import RESULTS
from benchmarks.gpu.estimate.shapes import KVKind

FILE = RESULTS / "gpu_kernels.json"


@dataclass(frozen=True, slots=True)
class Issued:
    """Of one kernel on one device: instructions of its warps that a program issues for a key."""

    instructions: float


@cache
def source() -> str:
    """Where the counts come from."""
    return f"counted in what Triton {_table()['triton']} compiles (`benchmarks/results/{FILE.name}`)"


@cache
def decode(capability: int, model: str, kind: KVKind) -> Issued | None:
    """Decode attention of a model's heads in bfloat16; None where nobody compiled it for such a device."""
    for row in _table()["rows"]:
        told = (row["kernel"], row["form"], row["capability"], row["case"])
        if told == ("attention_kernel", "decode", capability, f"{model} bf16 {kind}"):
            return Issued(float(row["per_unit"]))
    return None


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return table

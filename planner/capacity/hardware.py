"""Hardware by name: memory, bandwidth, arithmetic, and where the figures come from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

GIB = 1 << 30
_FILE = Path(__file__).with_name("hardware.json")
_SEVERAL = re.compile(r"(\d{1,5})\s*[x×]\s*(.+)", re.IGNORECASE)
# What is shown where nobody names hardware.
USUAL = ("A100-80GB", "4x A100-80GB", "H100", "H200", "L4", "RTX 4090", "Xeon, 1 thread")
# In what arithmetic is done for weights of a type, the first that the hardware has a rate for. Weights of four bits are
# widened first.
_ARITHMETIC = {
    "fp32": ("fp32",),
    "fp16": ("fp16", "fp32"),
    "bf16": ("fp16", "fp32"),
    "fp8": ("fp8", "fp16", "fp32"),
    "int8": ("int8", "fp16", "fp32"),
    "int4": ("fp16", "fp32"),
}


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device, or several as one: `count` of them share the layers' work evenly, and what they tell each other
    takes no time.

    `memory` is in bytes, `bandwidth` in bytes a second, `flops` in operations a second by type; `fp16` stands for both
    types of 16 bits. All three are of all devices together.
    """

    name: str
    memory: int
    bandwidth: float
    flops: Mapping[str, float]
    source: str
    count: int = 1

    def peak(self, number_type: str) -> float:
        """Operations a second with weights of this type."""
        return next(self.flops[name] for name in _ARITHMETIC[number_type] if name in self.flops)

    def ridge(self, number_type: str) -> float:
        """The operations for each byte read from which on arithmetic is what takes the time."""
        return self.peak(number_type) / self.bandwidth

    def times(self, count: int) -> Hardware:
        flops = {name: rate * count for name, rate in self.flops.items()}
        name = f"{count}x {self.name}"
        return replace(
            self, name=name, memory=self.memory * count, bandwidth=self.bandwidth * count, flops=flops, count=count
        )


@cache
def known_hardware() -> Mapping[str, Hardware]:
    """The hardware of the data file, by name."""
    data = json.loads(_FILE.read_text(encoding="utf-8"))
    return {
        name: Hardware(name, int(entry["memory_gib"] * GIB), entry["bandwidth"], entry["flops"], entry["source"])
        for name, entry in data.items()
    }


def named_hardware(name: str, others: Mapping[str, Hardware] | None = None) -> Hardware | None:
    """The hardware of that name, in any case, or `4x NAME`; `others` are known besides. None where there is none."""
    known = {**known_hardware(), **(others or {})}
    by_key = {_key(known_name): hardware for known_name, hardware in known.items()}
    if (one := by_key.get(_key(name))) is not None:
        return one
    several = _SEVERAL.fullmatch(name.strip())
    if several is None or int(several[1]) < 1:
        return None
    one = by_key.get(_key(several[2]))
    return None if one is None else one if int(several[1]) == 1 else one.times(int(several[1]))


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.strip().lower())

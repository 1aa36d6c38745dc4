"""The GPUs of the estimate. Memory, bandwidth and arithmetic are those of `planner/capacity/hardware.json`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qpdsl.planner.capacity.hardware import known_hardware

# Bytes that a multiprocessor takes from the L2 cache in a clock, and instructions that it issues, one by each of its
# schedulers (Jia et al., "Dissecting the NVIDIA Volta GPU architecture via microbenchmarking", 2018; NVIDIA's tuning
# guides for Ampere, Ada and Hopper name no other numbers).
L2_BYTES_A_CLOCK = 64
ISSUED_A_CLOCK = 4


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU: data-sheet `bandwidth` in bytes and `flops` in operations a second, in bfloat16 summed in float32.

    `clock` in Hz is the boost clock, `l2` the bytes of the L2 cache; `copy`: bytes a second that a copy moves, read and
    written; None where nobody measured it.
    """

    name: str
    memory: int
    bandwidth: float
    flops: float
    capability: int
    multiprocessors: int
    clock: float
    l2: int
    copy: float | None = None

    def measured(self, copy: float | None) -> Device:
        """With the copy's bandwidth that a run measured in place of what is assumed."""
        return replace(self, copy=copy)


# Compute capability, multiprocessors, boost clock and L2: NVIDIA's white papers on GA100 (table 1), GH100 (tables 2 and
# 3) and AD102 (table 2), and the L4's data sheet.
_CHIPS = {
    "H100": (90, 132, 1.83e9, 50 << 20),
    "H200": (90, 132, 1.83e9, 50 << 20),
    "A100-80GB": (80, 108, 1.41e9, 40 << 20),
    "RTX 4090": (89, 128, 2.52e9, 72 << 20),
    "L4": (89, 58, 2.04e9, 48 << 20),
}
# What a driver calls them. Others with such a chip have another memory.
_NAMES = {
    "H100": "NVIDIA H100 80GB HBM3",
    "H200": "NVIDIA H200",
    "A100-80GB": "NVIDIA A100-SXM4-80GB",
    "RTX 4090": "NVIDIA GeForce RTX 4090",
    "L4": "NVIDIA L4",
}


def devices() -> dict[str, Device]:
    """All of them, by name."""
    known = known_hardware()
    return {
        name: Device(name, known[name].memory, known[name].bandwidth, known[name].peak("bf16"), *chip)
        for name, chip in _CHIPS.items()
    }


def device_of(driver_name: str) -> Device | None:
    """The one that a driver calls so; None where it is none of these."""
    return next((devices()[name] for name, told in _NAMES.items() if told == driver_name), None)

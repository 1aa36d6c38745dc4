"""Every number of the estimate that was neither counted nor read off a data sheet."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Literal

Side = Literal["best", "worst"]


@dataclass(frozen=True, slots=True)
class Assumed:
    """What a number is taken to be, between what it may be at `best` and at `worst`, and why."""

    usual: float
    best: float
    worst: float
    unit: str
    why: str


ASSUMED = {
    "copy_share": Assumed(
        0.90, 0.93, 0.88, "of the data sheet's bandwidth",
        "what a device-to-device copy moves, read and written; about 3.0 of 3.35 TB/s are reported of an H100. A "
        "run measures it, and the floor is over it",
    ),
    "product_share": Assumed(
        0.90, 1.00, 0.82, "of the copy's bandwidth",
        "what a matrix product of a few rows streams weights at. Reading alone turns the bus less often than copying; "
        "tiles that do not divide evenly over the multiprocessors lose more",
    ),
    "attention_share": Assumed(
        0.82, 0.92, 0.75, "of the copy's bandwidth",
        "what decode attention reads pages at: pieces of 4 KiB and less (16 tokens of one head), two programs or more "
        "in flight on each multiprocessor",
    ),
    "issue_share": Assumed(
        0.90, 1.0, 0.70, "of the schedulers' slots",
        "what attention issues where its instructions take as long as its loads, with two or three warps a scheduler",
    ),
    "head_share": Assumed(
        0.88, 0.95, 0.75, "of the copy's bandwidth", "what the fused head, a Triton product, streams weights at"
    ),
    "product_flops": Assumed(
        0.75, 0.82, 0.60, "of the data sheet's arithmetic",
        "large products of cuBLAS; some 800 of 989 TFLOP/s are reported of an H100 at 8192³, and fewer rows reach less",
    ),
    "prefill_flops": Assumed(
        0.35, 0.45, 0.25, "of the data sheet's arithmetic", "what prefill attention by Triton multiplies"
    ),
    "gap": Assumed(
        1.3, 0.8, 1.6, "µs",
        "between two kernels of a graph; 1.3 on an H100 (Spector et al., Look Ma, No Bubbles, Hazy Research, 2025)",
    ),
    "ramp": Assumed(
        1.5, 1.0, 2.2, "µs",
        "of a kernel in which memory is not busy: its first loads' way from memory, its last results' way back",
    ),
    "l2_share": Assumed(
        0.5, 0.7, 0.3, "of what the multiprocessors can take from the L2", "what small kernels read and write, which "
        "lies in the L2"
    ),
    "eager_launch": Assumed(
        15.0, 10.0, 20.0, "µs", "of the host for a launch of a module's operation: Python, torch's dispatch, the driver"
    ),
    "wait": Assumed(
        25.0, 15.0, 40.0, "µs", "a step's numbers to the device, a graph's start, tokens back, and the host's waking up"
    ),
    "host_speed": Assumed(
        1.0, 0.6, 1.3, "of the host's time measured here",
        "0.08, 0.30 and 0.91 ms of scheduling and bookkeeping for 1, 64 and 256 rows, without layers and head, on a "
        "processor of a cloud machine, and 0.2 ms for launches and copies",
    ),
    "exposed": Assumed(
        0.0, 0.0, 0.5, "of the host's time",
        "what of it the next launch waits for: nothing where that step is fed, and half where it is not",
    ),
    "draw_lanes": Assumed(
        60.0, 40.0, 120.0, "instructions", "of a lane for one id of one draw: Philox, two logarithms, the best so far"
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Assumptions:
    """A value for each of `ASSUMED`, by its name; times in seconds."""

    copy_share: float
    product_share: float
    attention_share: float
    issue_share: float
    head_share: float
    product_flops: float
    prefill_flops: float
    gap: float
    ramp: float
    l2_share: float
    eager_launch: float
    wait: float
    host_speed: float
    exposed: float
    draw_lanes: float

    def varied(self, name: str, side: Side) -> Assumptions:
        """With one of them at its best or at its worst."""
        return replace(self, **{name: _value(name, side)})


def usual() -> Assumptions:
    """All of them as they are taken to be."""
    return Assumptions(**{field.name: _value(field.name, "usual") for field in fields(Assumptions)})


def _value(name: str, side: Literal["usual", "best", "worst"]) -> float:
    assumed = ASSUMED[name]
    return float(asdict(assumed)[side]) * (1e-6 if assumed.unit == "µs" else 1.0)

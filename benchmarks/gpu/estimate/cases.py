"""The cases of the estimate: steps of models on GPUs, run in three ways."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from benchmarks.gpu.estimate import instructions
from benchmarks.gpu.estimate.assumptions import ASSUMED, Assumptions, Side, usual
from benchmarks.gpu.estimate.devices import ISSUED_A_CLOCK, Device
from benchmarks.gpu.estimate.shapes import SHAPES, KVKind
from benchmarks.gpu.estimate.step import (
    Batch,
    Launch,
    Layers,
    Machine,
    attention,
    count,
    decode_step,
    device_seconds,
    floor_seconds,
    layers_of,
    mixed_step,
)

# `modules`: transformers' layers in a graph. `stack`: the engine's own kernels in a graph. `overlapped`: the same, and
# what nobody waits for of the host's work under the next step.
Way = Literal["modules", "stack", "overlapped"]
WAYS: tuple[Way, ...] = ("modules", "stack", "overlapped")
# Rows of a step, and seconds of the host's work for it: what `benchmarks.gpu.host_time` counts, with launches and
# copies, which it leaves out, as a fifth of a millisecond.
_HOST = ((1, 0.28e-3), (64, 0.50e-3), (256, 1.11e-3))
# Bytes that are no weights and no cache: the context of the driver, the libraries' and the steps' own.
_REST = 2 << 30
# What attention alone is shown of, and the keys of a block.
_ATTENDED, _BLOCK = Batch(64, 4096), 64


@dataclass(frozen=True, slots=True)
class Case:
    """Sequences of one model that decode."""

    model: str
    batch: Batch

    @property
    def name(self) -> str:
        kind = "" if self.batch.kind == "plain" else f" {self.batch.kind}"
        return f"{self.model} {self.batch.sequences} × {self.batch.context}{kind}"


CASES = tuple(
    Case(model, batch)
    for model, batch in (
        ("8B", Batch(1, 4096)),
        ("8B", Batch(16, 4096)),
        ("8B", Batch(64, 4096)),
        ("8B", Batch(64, 4096, "fp8")),
        ("8B", Batch(64, 512)),
        ("8B", Batch(256, 1024)),
        ("1B", Batch(1, 512)),
        ("1B", Batch(64, 4096)),
        ("1B", Batch(256, 512)),
    )
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a step in one way, and its share of the roofline with the range in which that should lie."""

    seconds: float
    share: float
    least: float
    most: float
    launches: int


def fits(case: Case, device: Device) -> bool:
    """Whether weights and cache fit the device's memory."""
    shape, batch = SHAPES[case.model], case.batch
    kept = batch.sequences * batch.context * shape.token_bytes(batch.kind)
    return shape.held_bytes + kept + _REST <= device.memory


def floor(case: Case, device: Device) -> float:
    """Seconds in which the step's bytes can be read at the copy's bandwidth."""
    return floor_seconds(SHAPES[case.model], case.batch, Machine(device, usual()))


def estimate(case: Case, way: Way, device: Device) -> Estimate:
    """The range is that of the assumptions, one at a time, taken as independent of each other."""
    taken = usual()
    seconds = step_seconds(case, way, device, taken)
    share = _share(case, way, device, taken)
    sides: dict[Side, float] = {}
    for side in ("best", "worst"):
        moves = (_share(case, way, device, taken.varied(name, side)) - share for name in ASSUMED)
        sides[side] = math.sqrt(sum(move * move for move in moves))
    launches = count(launches_of(case, way, device))
    return Estimate(seconds, share, share - sides["worst"], share + sides["best"], launches)


def step_seconds(case: Case, way: Way, device: Device, a: Assumptions) -> float:
    """From one token on the host to the next."""
    own, host = device_seconds(launches_of(case, way, device, a)), a.host_speed * host_seconds(case.batch.sequences)
    exposed = a.exposed if way == "overlapped" else 1.0
    return max(own, (1 - exposed) * host) + exposed * host + a.wait


# What a step takes beyond its floor, by cause: the assumptions that say so, as they would be without it.
CAUSES: dict[str, dict[str, float]] = {
    "launches": {"gap": 0.0, "ramp": 0.0},
    "rates": {"product_share": 1.0, "attention_share": 1.0, "head_share": 1.0},
    "host": {"wait": 0.0, "host_speed": 0.0},
}


def caused(case: Case, device: Device, cause: str) -> float:
    """Seconds that a step, overlapped, would take less without one of `CAUSES`."""
    taken = usual()
    saved = replace(taken, **CAUSES[cause])
    return step_seconds(case, "overlapped", device, taken) - step_seconds(case, "overlapped", device, saved)


def at_best(case: Case, device: Device) -> float:
    """The share of the roofline, overlapped, with every assumption at its best."""
    best = usual()
    for name in ASSUMED:
        best = best.varied(name, "best")
    return _share(case, "overlapped", device, best)


def host_seconds(rows: int) -> float:
    """Scheduling and bookkeeping of a step of so many rows, between what was measured."""
    for (fewer, less), (more, longer) in pairwise(_HOST):
        if rows <= more:
            return less + (longer - less) * (rows - fewer) / (more - fewer)
    return _HOST[-1][1] * rows / _HOST[-1][0]


def sensitivity(case: Case, way: Way, device: Device) -> dict[str, tuple[float, float]]:
    """By assumption, how far the share moves with it at its worst and at its best."""
    taken = usual()
    share = _share(case, way, device, taken)
    return {
        name: (
            _share(case, way, device, taken.varied(name, "worst")) - share,
            _share(case, way, device, taken.varied(name, "best")) - share,
        )
        for name in ASSUMED
    }


def launches_of(case: Case, way: Way, device: Device, a: Assumptions | None = None) -> list[Launch]:
    """The launches of a step; `a` None: as usual."""
    issued = instructions.decode(device.capability, case.model, case.batch.kind)
    return decode_step(SHAPES[case.model], case.batch, layers_of(way), Machine(device, a or usual()), issued)


@dataclass(frozen=True, slots=True)
class Attended:
    """Decode attention of one layer: `seconds`, its share of the copy's bandwidth, and clocks of a block of 64 keys:
    until its multiprocessor has `read` it, and while its schedulers are `issued` it."""

    seconds: float
    share: float
    read: float
    issued: float


def attention_case(kind: KVKind, device: Device, batch: Batch = _ATTENDED, model: str = "8B") -> Attended | None:
    """None where its instructions are not counted."""
    shape, batch = SHAPES[model], replace(batch, kind=kind)
    issued = instructions.decode(device.capability, model, kind)
    if issued is None:
        return None
    on = Machine(device, usual())
    seconds = attention(shape, batch, on, issued)[0].seconds
    rate = on.bandwidth
    moved = batch.sequences * batch.context * shape.token_bytes(kind) / shape.layers
    block = _BLOCK * shape.token_bytes(kind) / shape.layers / shape.kv_heads
    read = block / (rate / device.multiprocessors) * device.clock
    return Attended(seconds, moved / rate / seconds, read, _BLOCK * issued.instructions / ISSUED_A_CLOCK)


@dataclass(frozen=True, slots=True)
class Mixed:
    """A step of `decoding` sequences and of chunks of so many tokens, each after `cached`; all are read."""

    model: str
    decoding: Batch
    chunks: int
    tokens: int
    cached: int

    @property
    def name(self) -> str:
        decoding = f"{self.decoding.sequences} decode at {self.decoding.context}, " if self.decoding.sequences else ""
        return f"{self.model}: {decoding}{self.chunks} × {self.tokens} tokens after {self.cached}"


MIXED = (
    Mixed("8B", Batch(63, 1024), 1, 193, 0),
    Mixed("8B", Batch(0, 0), 64, 4, 512),
    Mixed("8B", Batch(0, 0), 4, 512, 0),
    Mixed("1B", Batch(63, 1024), 1, 193, 0),
    Mixed("1B", Batch(0, 0), 64, 4, 512),
)


def mixed_seconds(mixed: Mixed, way: Layers | Literal["eager"], device: Device, a: Assumptions | None = None) -> float:
    """From one step to the next. `eager`: the device or the host's launches, whichever takes longer."""
    a, rows = a or usual(), mixed.decoding.sequences + mixed.chunks
    issued = instructions.decode(device.capability, mixed.model, "plain")
    layers: Layers = "stack" if way == "stack" else "modules"
    launches = mixed_step(
        SHAPES[mixed.model],
        mixed.decoding,
        mixed.chunks,
        mixed.tokens,
        mixed.cached,
        layers,
        Machine(device, a),
        issued,
    )
    own = device_seconds(launches)
    if way == "eager":
        own = max(own, count(launches) * a.eager_launch)
    return own + a.host_speed * host_seconds(rows) + a.wait


def _share(case: Case, way: Way, device: Device, a: Assumptions) -> float:
    return floor_seconds(SHAPES[case.model], case.batch, Machine(device, a)) / step_seconds(case, way, device, a)

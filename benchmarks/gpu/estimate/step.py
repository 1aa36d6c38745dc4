"""A decode step as a list of launches, and how long each takes.

A launch begins `gap` after the one before, has memory idle for `ramp`, and then takes as long as the slowest of its
three: what it moves, what it multiplies, what it issues. Attention's loads and instructions do not overlap wholly, with
two or three warps on a scheduler: the root of the sum of their squares stands for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from benchmarks.gpu.estimate.assumptions import Assumptions
from benchmarks.gpu.estimate.devices import ISSUED_A_CLOCK, L2_BYTES_A_CLOCK, Device
from benchmarks.gpu.estimate.instructions import Issued
from benchmarks.gpu.estimate.shapes import KVKind, Shape

# How the layers run: transformers' modules, or the engine's own kernels between the products.
Layers = Literal["modules", "stack"]
Part = Literal["products", "attention", "small", "head"]

# Launches of a layer of a Llama beside its products and attention, and numbers that each reads and writes for a row, in
# widths: counted by torch's dispatcher (tests/benchmarks/test_gpu_estimate.py), and those of the engine's own stack.
MODULES = {
    "norms": (16, "hidden", 3),
    "rotation": (10, "queries", 2),
    "residuals": (2, "hidden", 3),
    "activation": (2, "intermediate", 3),
    "store": (1, "keys", 4),
}
STACK = {"add and norm": (2, "hidden", 4), "rotate and store": (1, "queries", 3), "activation": (1, "intermediate", 3)}
# Of the products, how many modules have for one: queries, keys and values, gate and up.
_APART = {"qkv": 3, "gate and up": 2}
# cuBLAS splits a product of few rows by its inputs, and joins the parts by another launch, where its tiles of so many
# outputs would not keep a part of the multiprocessors busy.
_TILE, _SPLIT, _FEW = 128, 3, 64
# Launches of a step outside the layers: embedding, last norm, rows that are read; of modules also the angles.
OUTSIDE = {"modules": 20, "stack": 3}
# The head draws in a kernel over tiles of ids and one that joins the tiles.
HEAD = 2
# Tokens of a part of a context in decode attention, each for a program of its own: fewer where programs are few
# (`executor/kernels/triton/tuning.py`), so that with contexts of `CONTEXT` two run on each multiprocessor.
PART, MIN_PART, CONTEXT = 512, 128, 4096
_WIDE, _FLOAT = 2, 4


@dataclass(frozen=True, slots=True)
class Launch:
    """`times` kernels of one kind in a step, each of so many seconds, gap and ramp included."""

    name: str
    part: Part
    times: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences that decode, each with `context` tokens, keys and values kept as `kind`."""

    sequences: int
    context: int
    kind: KVKind = "plain"


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU and what is assumed of it. All rates are a second's."""

    device: Device
    assumed: Assumptions

    @property
    def bandwidth(self) -> float:
        """Bytes that a copy reads and writes, as measured or as assumed."""
        device = self.device
        return self.assumed.copy_share * device.bandwidth if device.copy is None else device.copy

    @property
    def peak(self) -> float:
        """Operations of the products of a step."""
        return self.assumed.product_flops * self.device.flops

    @property
    def cached(self) -> float:
        """Bytes of small kernels over what lies in the L2."""
        return self.assumed.l2_share * L2_BYTES_A_CLOCK * self.device.clock * self.device.multiprocessors

    @property
    def issued(self) -> float:
        """Instructions of warps, on all multiprocessors."""
        return ISSUED_A_CLOCK * self.device.clock * self.device.multiprocessors

    @property
    def start(self) -> float:
        """Seconds of a kernel in which nothing of it goes on."""
        return self.assumed.gap + self.assumed.ramp


def decode_step(shape: Shape, batch: Batch, layers: Layers, on: Machine, issued: Issued | None) -> list[Launch]:
    """The launches of a step of one token a sequence."""
    rows = batch.sequences
    launches = [*products(shape, rows, layers, on), *attention(shape, batch, on, issued)]
    launches += between(shape, rows, layers, on)
    return [*launches, *head(shape, rows, on)]


def mixed_step(
    shape: Shape,
    decoding: Batch,
    chunks: int,
    tokens: int,
    cached: int,
    layers: Layers,
    on: Machine,
    issued: Issued | None,
) -> list[Launch]:
    """The launches of a step of sequences that decode and of `chunks` of so many tokens, each after `cached`."""
    rows = decoding.sequences + chunks * tokens
    launches = products(shape, rows, layers, on)
    if decoding.sequences:
        launches += attention(shape, decoding, on, issued)
    pairs = chunks * tokens * (cached + (tokens + 1) / 2)
    computed = 4 * shape.heads * shape.dim * pairs / (on.assumed.prefill_flops * on.device.flops)
    moved = chunks * (cached + tokens) * shape.token_bytes() / shape.layers
    prefill = max(computed, moved / (on.assumed.attention_share * on.bandwidth))
    launches.append(Launch("prefill", "attention", shape.layers, on.start + prefill))
    launches += between(shape, rows, layers, on)
    return [*launches, *head(shape, decoding.sequences + chunks, on)]


def between(shape: Shape, rows: int, layers: Layers, on: Machine) -> list[Launch]:
    """What lies between products and attention, for `rows` tokens."""
    widths = {
        "hidden": shape.hidden,
        "queries": shape.heads * shape.dim,
        "keys": shape.kv_heads * shape.dim,
        "intermediate": shape.intermediate,
    }
    launches = [
        small(name, times * shape.layers, _WIDE * rows * numbers * widths[width], on)
        for name, (times, width, numbers) in (MODULES if layers == "modules" else STACK).items()
    ]
    return [*launches, small("outside the layers", OUTSIDE[layers], _WIDE * rows * 3 * shape.hidden, on)]


def layers_of(way: str) -> Layers:
    """How the layers run, of a way to run steps."""
    return "modules" if way == "modules" else "stack"


def products(shape: Shape, rows: int, layers: Layers, on: Machine) -> list[Launch]:
    """The matrix products of the layers for `rows` tokens."""
    made = []
    for name, (outputs, inputs) in shape.products.items():
        pieces = _APART.get(name, 1) if layers == "modules" else 1
        moved = _WIDE * (outputs * inputs + rows * (outputs + pieces * inputs))
        seconds = max(moved / (on.assumed.product_share * on.bandwidth), 2 * outputs * inputs * rows / on.peak)
        times = pieces * shape.layers
        made.append(Launch(name, "products", times, on.start + seconds / pieces))
        if _SPLIT * -(-outputs // pieces // _TILE) < on.device.multiprocessors and rows <= _FEW:
            partial = 2 * _FLOAT * rows * outputs // pieces
            made.append(Launch(f"{name}, joined", "products", times, small(name, 1, partial, on).seconds))
    return made


def attention(shape: Shape, batch: Batch, on: Machine, issued: Issued | None) -> list[Launch]:
    """Decode attention of all layers, and the merge where contexts are split. `issued` None: by its bytes alone."""
    size, whole = PART, batch.sequences * shape.kv_heads
    while size > MIN_PART and 2 * size * on.device.multiprocessors > CONTEXT * whole:
        size //= 2
    # With the tokens that are drawn meanwhile.
    splits = batch.context // size + 1
    programs = whole * splits
    numbers = batch.sequences * shape.heads * shape.dim
    moved = batch.sequences * batch.context * shape.token_bytes(batch.kind) / shape.layers + 2 * _WIDE * numbers
    # Programs are dealt out evenly; the busiest multiprocessor has so many.
    busiest = -(-programs // on.device.multiprocessors)
    reach = L2_BYTES_A_CLOCK * on.device.clock
    memory = max(moved / (on.assumed.attention_share * on.bandwidth), busiest * moved / programs / reach)
    issue = 0.0
    if issued is not None:
        keys = busiest * -(-batch.context // splits)
        issue = keys * issued.instructions / (on.assumed.issue_share * ISSUED_A_CLOCK * on.device.clock)
    made = [Launch("attention", "attention", shape.layers, on.start + math.hypot(memory, issue))]
    if splits > 1:
        partial = 2 * _FLOAT * numbers * splits
        merge = small("merge", shape.layers, partial, on)
        made.append(Launch(merge.name, "attention", merge.times, merge.seconds))
    return made


def small(name: str, times: int, moved: float, on: Machine) -> Launch:
    """Kernels over what lies in the L2, where it fits half of it."""
    rate = on.cached if moved <= on.device.l2 / 2 else on.bandwidth
    return Launch(name, "small", times, on.start + moved / rate)


def head(shape: Shape, rows: int, on: Machine) -> list[Launch]:
    """The fused head: its product, the draw of every id, and the joining of the tiles."""
    moved = _WIDE * shape.head_weights
    lanes = rows * shape.vocabulary * on.assumed.draw_lanes / 32
    drawing = lanes / on.issued
    product = max(moved / (on.assumed.head_share * on.bandwidth), 2 * shape.head_weights * rows / on.peak)
    joining = on.start
    return [Launch("head", "head", 1, on.start + product + drawing), Launch("join", "head", HEAD - 1, joining)]


def device_seconds(launches: Iterable[Launch]) -> float:
    return sum(launch.times * launch.seconds for launch in launches)


def count(launches: Iterable[Launch]) -> int:
    return sum(launch.times for launch in launches)


def floor_seconds(shape: Shape, batch: Batch, on: Machine) -> float:
    """The bytes that a step must read, over the copy's bandwidth."""
    kept = batch.sequences * batch.context * shape.token_bytes(batch.kind)
    return (shape.read_bytes + kept) / on.bandwidth

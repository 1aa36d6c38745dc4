"""Dense heads against sparse ones over the number of allowed ids: the kernel alone, and whole decode steps.

    python -m benchmarks.decoding.heads [--threads 1] [--repeats 5] [--clock wall] [--quick] [--output FOLDER]

Random float32 weights for every width and vocabulary below, one head in memory at a time. Ids are drawn evenly, or are
neighbours (clustered), and every call has the next of several masks, so that what a sparse head reads is not what it
has just read. Both sides are the same kernel and draw the same tokens: the dense one over all panels of ids, the sparse
one over those that hold an allowed id. Shares are of the bytes a second that a loop reads in the same run. Whole steps
are those of the engine, on random weights in the shapes of SmolLM2-135M and Gemma-3-270M.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe
from benchmarks.common.results import write
from benchmarks.common.roofline import Roofline
from benchmarks.common.serving import GREEDY, NAME, engine_of, paged, run
from benchmarks.common.shapes import random_prompts
from benchmarks.decoding.head_tables import draw, goals_of, page
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.kernels.data.weights import FloatWeight
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.kernels.llvm.panel_head import SPARSE_SHARE, PanelHead
from qpdsl.executor.kernels.llvm.panels import PanelWeights
from qpdsl.executor.kernels.llvm.product import Product
from qpdsl.executor.requests.request import Bits, GenerateRequest

FILE = "heads"
WIDTHS = (576, 640, 896, 4096)
VOCABULARIES = (49_152, 128_256, 262_144)
ROWS = (1, 8)
RANDOM, CLUSTERED = "random", "clustered"
# Masks that take turns, so that a head's panels are not in the cache because the last call read them.
_MASKS = 8
_MIN_SECONDS = 0.02
_PATTERN_BYTES = 1 << 24
# Allowed ids in whole steps, and the tokens of a measured request.
_STEP_IDS = (1, 16, 256, 4096)
_STEP_TOKENS = 16
_KV_BYTES = 256 << 20
# Hidden width, layers, heads, KV heads, width of a head, of the MLP, and ids.
_SHAPES = {
    "SmolLM2-135M": (576, 30, 9, 3, 64, 1536, 49_152),
    "Gemma-3-270M": (640, 18, 4, 1, 256, 2048, 262_144),
}

Call = Callable[[], object]


@dataclass(frozen=True)
class Kernel:
    """One head, one batch and one number of ids: seconds a call of each repeat, and panels that a sparse call reads."""

    width: int
    vocabulary: int
    rows: int
    ids: int
    kind: str
    all_panels: int
    panels: float
    panel_bytes: int
    dense: list[float]
    sparse: list[float]


@dataclass(frozen=True)
class Step:
    """Whole decode steps of one model: seconds a step of each repeat."""

    model: str
    rows: int
    ids: int
    dense: list[float]
    sparse: list[float]


def head_of(width: int, vocabulary: int) -> Product:
    """A head of random weights, which are never in memory twice."""
    weights = PanelWeights(FloatWeight(torch.zeros(1, 1).expand(vocabulary, width)), vector_width())
    generator = torch.Generator().manual_seed(0)
    numbers = weights.data.view(torch.float32).view(-1)
    pattern = torch.randn(_PATTERN_BYTES // 4, generator=generator) / width**0.5 * 3
    for start in range(0, len(numbers), len(pattern)):
        part = numbers[start : start + len(pattern)]
        part.copy_(pattern[: len(part)])
    return Product(weights)


def counts_of(vocabulary: int, quick: bool) -> list[int]:
    """Numbers of allowed ids: 1, 4, 16 and so on, and all."""
    counts = [4**power for power in range(10) if 4**power < vocabulary]
    return [*(counts[::2] if quick else counts), vocabulary]


def masks_of(vocabulary: int, rows: int, ids: int, kind: str) -> Bits:
    """int32 [_MASKS, rows, words], `ids` of them allowed in each."""
    rng = np.random.default_rng(ids)
    allowed = np.zeros((_MASKS * rows, -(-vocabulary // 32) * 32), dtype=bool)
    for row in allowed:
        if kind == RANDOM:
            row[rng.choice(vocabulary, ids, replace=False)] = True
        else:
            start = rng.integers(vocabulary - ids + 1)
            row[start : start + ids] = True
    return np.packbits(allowed, axis=1, bitorder="little").view(np.int32).reshape(_MASKS, rows, -1)


def seconds_of(call: Call, clock: Callable[[], float]) -> float:
    """Seconds a call, of enough calls to be measured."""
    calls, spent = 0, 0.0
    start = clock()
    while spent < _MIN_SECONDS:
        call()
        calls += 1
        spent = clock() - start
    return spent / calls


def in_turns(sides: Sequence[Call], repeats: int, clock: Callable[[], float]) -> list[list[float]]:
    """Seconds a call of each side, a repeat each; every other round runs backwards."""
    found: list[list[float]] = [[] for _ in sides]
    for side in sides:
        side()
    for repeat in range(repeats):
        for number in range(len(sides))[:: 1 if repeat % 2 == 0 else -1]:
            found[number].append(seconds_of(sides[number], clock))
    return found


class Drawing:
    """Calls of a head with masks that take turns."""

    def __init__(self, head: PanelHead, hidden: torch.Tensor, masks: Bits) -> None:
        self._head, self._hidden, self._masks = head, hidden, masks
        self._turn = 0

    def __call__(self) -> object:
        self._turn = (self._turn + 1) % len(self._masks)
        rows = np.arange(len(self._hidden))
        warm = np.ones(len(rows), dtype=np.float32)
        return self._head(self._hidden, rows, warm, rows, rows + self._turn, rows, rows >= 0, self._masks[self._turn])


def kernels(arguments: argparse.Namespace, clock: Callable[[], float]) -> list[Kernel]:
    found = []
    widths, vocabularies = (WIDTHS[:1], VOCABULARIES[:1]) if arguments.quick else (WIDTHS, VOCABULARIES)
    for width in widths:
        for vocabulary in vocabularies:
            product = head_of(width, vocabulary)
            # One never lists panels, the other always does.
            dense, sparse = PanelHead(product, share=0.0), PanelHead(product, share=float("inf"))
            for rows in ROWS:
                hidden = torch.randn(rows, width, generator=torch.Generator().manual_seed(1))
                for ids in counts_of(vocabulary, arguments.quick):
                    for kind in (RANDOM, CLUSTERED) if ids < vocabulary else (RANDOM,):
                        masks = masks_of(vocabulary, rows, ids, kind)
                        sides = Drawing(dense, hidden, masks), Drawing(sparse, hidden, masks)
                        ours = in_turns(sides, arguments.repeats, clock)
                        lengths = [
                            sparse.planner.plan(np.arange(rows), np.ones(rows, bool), bits).lengths.sum()
                            for bits in masks
                        ]
                        weights = product.weights
                        size = (weights.count, float(np.mean(lengths)), weights.panel_bytes)
                        found.append(Kernel(width, vocabulary, rows, ids, kind, *size, ours[0], ours[1]))
            print(f"{width} x {vocabulary}: done", flush=True)
    return found


class Turns:
    """A `Mask` that allows random ids, others after each token."""

    def __init__(self, bits: Bits, taken: int = 0) -> None:
        self._bits, self._taken = bits, taken

    @property
    def error(self) -> str | None:
        return None

    def push(self, token: int) -> bool:
        self._taken += 1
        return False

    def fork(self) -> Turns:
        return Turns(self._bits, self._taken)

    def forced(self) -> list[int]:
        return []

    def admits(self, tokens: Sequence[int]) -> int:
        return 0

    def fill(self, masks: Sequence[Turns], bits: Bits) -> None:
        for row, mask in zip(bits, masks, strict=True):
            row[:] = self._bits[mask._taken % len(self._bits)]

    def fill_ahead(self, masks: Sequence[Turns], paths: Sequence[Sequence[Sequence[int]]], bits: Bits) -> None:
        raise NotImplementedError("nothing is proposed here")


def model_of(name: str) -> PagedModel:
    """Random float32 weights in the shape of a real model, its embedding tied to its head."""
    width, layers, heads, kv_heads, head_dim, inner, vocabulary = _SHAPES[name]
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return paged(AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval())


def steps(arguments: argparse.Namespace, clock: Callable[[], float]) -> list[Step]:
    found = []
    for name in list(_SHAPES)[: 1 if arguments.quick else None]:
        model, vocabulary = model_of(name), _SHAPES[name][-1]
        for rows in ROWS:
            for ids in _STEP_IDS[::2] if arguments.quick else _STEP_IDS:
                masks = masks_of(vocabulary, rows, ids, RANDOM)
                times: dict[bool, list[float]] = {False: [], True: []}
                for repeat in range(arguments.repeats + 1):
                    for is_sparse in (False, True) if repeat % 2 else (True, False):
                        spent = step_seconds(model, masks, is_sparse, clock)
                        if repeat:
                            times[is_sparse].append(spent)
                found.append(Step(name, rows, ids, times[False], times[True]))
        print(f"{name}: done", flush=True)
    return found


def step_seconds(model: PagedModel, masks: Bits, is_sparse: bool, clock: Callable[[], float]) -> float:
    """Seconds of a decode step, of the median step."""
    rows = masks.shape[1]
    engine = engine_of({NAME: model}, _KV_BYTES)
    for row, prompt in enumerate(random_prompts(rows, 16, masks.shape[2] * 32)):
        request = GenerateRequest(prompt, (row,), GREEDY, _STEP_TOKENS, sparse=is_sparse)
        engine.submit(NAME, replace(request, mask=partial(Turns, masks[:, row])))
    # The first step reads the prompts.
    engine.step()
    times = []
    while engine.has_work:
        start = clock()
        engine.step()
        times.append(clock() - start)
    run(engine)
    return float(np.median(times))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--repeats", type=int, default=5, help="measured rounds")
    options.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: processor time of the process")
    options.add_argument("--quick", action="store_true", help="one head, one model, two rounds: does it work?")
    options.add_argument("--output", type=Path, default=RESULTS)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.repeats = min(arguments.repeats, 2)
    torch.set_num_threads(arguments.threads)
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[arguments.clock]
    which = 0 if arguments.clock == "wall" else 1
    bytes_a_second = Roofline(arguments.threads).read(64 << 20 if arguments.quick else 2 << 30)[which]
    record: dict[str, Any] = {
        "machine": describe(),
        "threads": arguments.threads,
        "clock": arguments.clock,
        "bytes_a_second": bytes_a_second,
        "share": SPARSE_SHARE,
        "kernels": [vars(kernel) for kernel in kernels(arguments, clock)],
        "steps": [vars(step) for step in steps(arguments, clock)],
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    draw(record, arguments.output / f"{FILE}.svg")
    write(arguments.output, FILE, page(record), record, goals_of(record))


if __name__ == "__main__":
    main()

"""Compiled recurrences against their twins in torch, and a text cut into segments against the text whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qpdsl.executor.kernels.data.states import FRESH, StateLayout, StateRows, StateSegment, StateStep
from qpdsl.executor.kernels.llvm import delta, recurrence
from qpdsl.executor.kernels.llvm import gates as gates_code
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.kernels.recurrences import GatedDelta, GatedNorm, MatrixState, SelectiveState, ShortConvolution

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

TOKENS, BLOCKS = 20, 6
Computation = ShortConvolution | MatrixState | SelectiveState | GatedDelta
Inputs = tuple[torch.Tensor | None, ...]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def convolution(dtype: torch.dtype, bias: bool, activated: bool) -> tuple[Computation, Inputs]:
    made = ShortConvolution(numbers(24, 1, 4), numbers(24) if bias else None, dtype, activated)
    # Part of a wider projection.
    return made, (numbers(TOKENS, 40, dtype=dtype)[:, 8:32],)


def matrix(value_dim: int) -> tuple[Computation, Inputs]:
    made = MatrixState((2, 4), (12, value_dim))
    query, key = numbers(TOKENS, 2, 12), numbers(TOKENS, 4, 12)[:, 1:3]
    return made, (query, key / 12**0.5, numbers(TOKENS, 4, value_dim), numbers(TOKENS, 4).sigmoid())


def rule(
    value_dim: int, dtype: torch.dtype = torch.float32, by_row: bool = False, **rules: Any
) -> tuple[Computation, Inputs]:
    channels, decays = 2 * 2 * 12 + 4 * value_dim, 4 * 12 if by_row else 4
    rate = numbers(decays).exp() if "bound" in rules else -numbers(decays).exp()
    convolved = numbers(channels, 1, 4), numbers(channels) if "bound" in rules else None
    sizes, norm = ((2, 4), (12, value_dim)), (numbers(value_dim), 1e-5)
    made = GatedDelta(*sizes, *convolved, (numbers(decays), rate), *norm, dtype, **rules)
    # Inputs below -20 and above 20 too; some are parts of a wider projection.
    joined, gate = numbers(TOKENS, channels, dtype=dtype), numbers(TOKENS, 4 * value_dim, dtype=dtype)
    write, inputs = numbers(TOKENS, 9, dtype=dtype)[:, 3:7], 20 * numbers(TOKENS, decays, dtype=dtype)
    return made, (joined, gate, write, inputs)


def selective(size: int) -> tuple[Computation, Inputs]:
    made = SelectiveState(-numbers(48, size).exp())
    rate, update = numbers(TOKENS, 48).exp(), numbers(TOKENS, 48)
    return made, (rate, update, numbers(TOKENS, size), numbers(TOKENS, size + 3)[:, :size])


CASES: dict[str, Callable[[], tuple[Computation, Inputs]]] = {
    "convolution": lambda: convolution(torch.float32, True, True),
    "convolution in bfloat16": lambda: convolution(torch.bfloat16, False, False),
    "convolution in float16": lambda: convolution(torch.float16, True, False),
    "delta rule": lambda: rule(16),
    "delta rule by row": lambda: rule(64, by_row=True, activation="sigmoid"),
    "bounded delta rule": lambda: rule(32, bound=-5.0, largest=2.0),
    "delta rule in bfloat16": lambda: rule(16, torch.bfloat16, bound=-5.0, rounds=True, rounds_normed=True),
    "linear attention": lambda: matrix(32),
    "selective scan": lambda: selective(5),
    "gated recurrence": lambda: selective(1),
}


def norm(dtype: torch.dtype, **rules: Any) -> tuple[GatedNorm, Inputs]:
    made = GatedNorm(numbers(16), 3, 16, 1e-5, dtype, **rules)
    return made, (numbers(TOKENS, 3, 16), numbers(TOKENS, 50, dtype=dtype)[:, :48])


BY_ROW: dict[str, Callable[[], tuple[GatedNorm, Inputs]]] = {
    "norm": lambda: norm(torch.float32),
    "norm after the gate": lambda: norm(torch.float32, gate_first=True),
    "norm and a sigmoid": lambda: norm(torch.float32, activation="sigmoid"),
    "norm in bfloat16": lambda: norm(torch.bfloat16, rounds_input=True, rounds_normed=True),
}


def set_width(patch: pytest.MonkeyPatch, width: int) -> None:
    """Has code be compiled for vectors of so many numbers; for none, torch computes."""
    for code in (delta, gates_code, recurrence):
        patch.setattr(code, "vector_width", lambda: width)


def run(
    made: Computation, inputs: Inputs, segments: Sequence[tuple[int, int, int, int]]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The outputs and all blocks after a step of `segments`, a part each."""
    parts = made.parts if isinstance(made, GatedDelta) else (made.part,)
    layout = StateLayout(((), parts))
    rows = StateRows(torch.full((BLOCKS * layout.block_bytes,), 0x7F, dtype=torch.uint8), layout)
    step = StateStep(rows, tuple(StateSegment(*segment) for segment in segments))
    return made(*inputs, 1, step), [rows.part(1, part.name) for part in parts]  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("name", CASES)
def test_compiled_code_computes_what_its_twin_does(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # A text that is copied on the way, one that another goes on from, and rows of none.
    segments = [(FRESH, 0, 0, 5), (0, 1, 5, 3), (1, 1, 8, 1), (1, 2, 9, 4), (FRESH, 3, 13, 5)]
    made, inputs = CASES[name]()
    # Code is compiled when it is first called.
    set_width(monkeypatch, width)
    out, kept = run(made, inputs, segments)
    set_width(monkeypatch, 0)
    expected, states = run(CASES[name]()[0], inputs, segments)
    # A sum of some numbers may come out as the other neighbour in bfloat16, and all that is computed from it then.
    tolerance = 2e-5 if out.dtype == torch.float32 else 0.02
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    for part, other in zip(kept, states, strict=True):
        torch.testing.assert_close(part[:4], other[:4], rtol=tolerance, atol=tolerance)
    assert not out[18:].any()


@pytest.mark.parametrize("name", BY_ROW)
def test_norms_are_those_of_their_twins_row_by_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (made, inputs), (twin, _) = BY_ROW[name](), BY_ROW[name]()

    def normed(computed: GatedNorm, rows: slice = slice(None)) -> torch.Tensor:
        # Values are lost on the way.
        return computed(*(part[rows].clone() for part in inputs))  # type: ignore[union-attr]

    whole = normed(made)
    set_width(monkeypatch, 0)
    # One unit in the last place of bfloat16, where the two round otherwise.
    tolerance = 1e-5 if "bfloat16" not in name else 2**-6
    torch.testing.assert_close(whole, normed(twin), rtol=tolerance, atol=1e-5)
    monkeypatch.setattr(gates_code, "_WORK", 1)
    for rows in (slice(0, 1), slice(3, 10), slice(11, TOKENS)):
        for computed in (made, twin):
            assert torch.equal(normed(computed, rows), normed(computed)[rows])


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=15, deadline=None)
@given(cuts=st.sets(st.integers(1, TOKENS - 1)), in_place=st.booleans(), threads=st.integers(1, 3))
def test_bits_do_not_depend_on_segments_nor_threads(
    name: str, compiled: bool, cuts: set[int], in_place: bool, threads: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for code in (delta, recurrence):
            patch.setattr(code, "_WORK", 1)
        if not compiled:
            set_width(patch, 0)
        made, inputs = CASES[name]()
        whole, state = run(made, inputs, [(FRESH, 0, 0, TOKENS)])
        bounds = [0, *sorted(cuts), TOKENS]
        segments, block = [], FRESH
        for first, last in pairwise(bounds):
            target = max(block, 0) if in_place else (block + 1) % BLOCKS
            segments.append((block, target, first, last - first))
            block = target
        patch.setattr(torch, "get_num_threads", lambda: threads)
        out, kept = run(made, inputs, segments)
    assert torch.equal(out, whole)
    assert all(torch.equal(part[block], whole[0]) for part, whole in zip(kept, state, strict=True))


@pytest.mark.parametrize("threads", [1, 3])
def test_texts_of_one_step_are_each_computed_as_by_themselves(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "_WORK", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    made, inputs = rule(32)
    # Two that go on from one block, and one between them.
    before = [(FRESH, 0, 0, 4)]
    forks = [(0, 1, 4, 3), (FRESH, 3, 7, 2), (3, 4, 9, 20 - 9), (0, 2, 4, 3)]
    out, kept = run(made, inputs, [*before, *forks])
    for first, *others in ([before[0], forks[0]], [before[0], forks[3]], [forks[1], forks[2]]):
        alone, states = run(made, inputs, [first, *others])
        for _, block, row, count in (first, *others):
            assert torch.equal(out[row : row + count], alone[row : row + count])
            assert all(torch.equal(part[block], own[block]) for part, own in zip(kept, states, strict=True))

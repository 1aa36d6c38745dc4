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
from qpdsl.executor.kernels.llvm import gates as gates_code
from qpdsl.executor.kernels.llvm import recurrence
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.kernels.recurrences import DeltaGates, GatedNorm, MatrixState, SelectiveState, ShortConvolution

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

TOKENS, BLOCKS = 20, 6
Computation = ShortConvolution | MatrixState | SelectiveState
Inputs = tuple[torch.Tensor | None, ...]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def convolution(dtype: torch.dtype, bias: bool, activated: bool) -> tuple[Computation, Inputs]:
    made = ShortConvolution(numbers(24, 1, 4), numbers(24) if bias else None, dtype, activated)
    # Part of a wider projection.
    return made, (numbers(TOKENS, 40, dtype=dtype)[:, 8:32],)


def matrix(value_dim: int, corrects: bool, by_row: bool) -> tuple[Computation, Inputs]:
    made = MatrixState((2, 4), (12, value_dim), corrects=corrects, by_row=by_row)
    query, key = numbers(TOKENS, 2, 12), numbers(TOKENS, 4, 12)[:, 1:3]
    decay = numbers(TOKENS, 4, 12) if by_row else numbers(TOKENS, 4)
    beta = numbers(TOKENS, 4).sigmoid() if corrects else None
    return made, (query, key / 12**0.5, numbers(TOKENS, 4, value_dim), decay.sigmoid(), beta)


def selective(size: int) -> tuple[Computation, Inputs]:
    made = SelectiveState(-numbers(48, size).exp())
    rate, update = numbers(TOKENS, 48).exp(), numbers(TOKENS, 48)
    return made, (rate, update, numbers(TOKENS, size), numbers(TOKENS, size + 3)[:, :size])


CASES: dict[str, Callable[[], tuple[Computation, Inputs]]] = {
    "convolution": lambda: convolution(torch.float32, True, True),
    "convolution in bfloat16": lambda: convolution(torch.bfloat16, False, False),
    "convolution in float16": lambda: convolution(torch.float16, True, False),
    "delta rule": lambda: matrix(16, True, False),
    "delta rule by row": lambda: matrix(64, True, True),
    "linear attention": lambda: matrix(32, False, False),
    "linear attention by row": lambda: matrix(8, False, True),
    "selective scan": lambda: selective(5),
    "gated recurrence": lambda: selective(1),
}


def gates(dtype: torch.dtype, **rules: Any) -> tuple[DeltaGates, Inputs]:
    rate = numbers(8).exp() if "bound" in rules else -numbers(8).exp()
    made = DeltaGates(2, 12, 4, numbers(8), rate, dtype, 2.0, **rules)
    # Below -20 and above 20 too.
    return made, (
        numbers(TOKENS, 60, dtype=dtype),
        numbers(TOKENS, 4, dtype=dtype),
        20 * numbers(TOKENS, 8, dtype=dtype),
    )


def norm(dtype: torch.dtype, **rules: Any) -> tuple[GatedNorm, Inputs]:
    made = GatedNorm(numbers(16), 3, 16, 1e-5, dtype, **rules)
    return made, (numbers(TOKENS, 3, 16), numbers(TOKENS, 50, dtype=dtype)[:, :48])


BY_ROW: dict[str, Callable[[], tuple[DeltaGates | GatedNorm, Inputs]]] = {
    "gates": lambda: gates(torch.float32),
    "gates in bfloat16": lambda: gates(torch.bfloat16),
    "bounded gates": lambda: gates(torch.float32, bound=-5.0),
    "bounded gates in bfloat16": lambda: gates(torch.bfloat16, bound=-5.0, rounds=True),
    "norm": lambda: norm(torch.float32),
    "norm after the gate": lambda: norm(torch.float32, gate_first=True),
    "norm and a sigmoid": lambda: norm(torch.float32, activation="sigmoid"),
    "norm in bfloat16": lambda: norm(torch.bfloat16, rounds_input=True, rounds_normed=True),
}


def run(
    made: Computation, inputs: Inputs, segments: Sequence[tuple[int, int, int, int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs and all blocks after a step of `segments`."""
    layout = StateLayout(((), (made.part,)))
    rows = StateRows(torch.full((BLOCKS * layout.block_bytes,), 0x7F, dtype=torch.uint8), layout)
    step = StateStep(rows, tuple(StateSegment(*segment) for segment in segments))
    return made(*inputs, 1, step), rows.part(1, made.part.name)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("name", CASES)
def test_compiled_code_computes_what_its_twin_does(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrence, "vector_width", lambda: width)
    made, inputs = CASES[name]()
    monkeypatch.setattr(recurrence, "vector_width", lambda: 0)
    twin, _ = CASES[name]()
    # A text that is copied on the way, one that another goes on from, and rows of none.
    segments = [(FRESH, 0, 0, 5), (0, 1, 5, 3), (1, 1, 8, 1), (1, 2, 9, 4), (FRESH, 3, 13, 5)]
    out, kept = run(made, inputs, segments)
    expected, states = run(twin, inputs, segments)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if out.dtype == torch.float32 else {"rtol": 0.01, "atol": 1e-6}
    torch.testing.assert_close(out, expected, **tolerance)
    torch.testing.assert_close(kept[:4], states[:4], rtol=1e-5, atol=1e-5)
    assert not out[18:].any()


@pytest.mark.parametrize("name", BY_ROW)
def test_gates_and_norms_are_those_of_their_twins_row_by_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, inputs = BY_ROW[name]()
    monkeypatch.setattr(gates_code, "vector_width", lambda: 0)
    twin, _ = BY_ROW[name]()

    def parts(computed: DeltaGates | GatedNorm, rows: slice) -> list[torch.Tensor]:
        # Values are lost on the way.
        found = computed(*(part[rows].clone() for part in inputs))  # type: ignore[union-attr]
        return [found] if isinstance(found, torch.Tensor) else [*found]

    whole = parts(made, slice(None))
    for part, expected in zip(whole, parts(twin, slice(None)), strict=True):
        # One unit in the last place of bfloat16, where the two round otherwise.
        tolerance = 1e-5 if "bfloat16" not in name else 2**-6
        torch.testing.assert_close(part, expected, rtol=tolerance, atol=1e-5)
    monkeypatch.setattr(gates_code, "_WORK", 1)
    for rows in (slice(0, 1), slice(3, 10), slice(11, TOKENS)):
        for computed in (made, twin):
            expected = parts(computed, slice(None))
            assert all(map(torch.equal, parts(computed, rows), [part[rows] for part in expected]))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=15, deadline=None)
@given(cuts=st.sets(st.integers(1, TOKENS - 1)), in_place=st.booleans(), threads=st.integers(1, 3))
def test_bits_do_not_depend_on_segments_nor_threads(
    name: str, compiled: bool, cuts: set[int], in_place: bool, threads: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrence, "_WORK", 1)
        if not compiled:
            patch.setattr(recurrence, "vector_width", lambda: 0)
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
    assert torch.equal(kept[block], state[0])

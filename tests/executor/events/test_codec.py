"""Events as lines and back: whatever texts and figures they hold."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.executor.events.codec import decode, encode
from qpdsl.executor.events.events import (
    CandidateRecord,
    Expanded,
    OperatorDone,
    OperatorStarted,
    Selected,
    ToolCalled,
    Valued,
)

PATHS = st.lists(st.integers(-1, 40), max_size=4).map(tuple)
FIGURES = st.floats(-1e9, 1e9)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | TEXTS | FIGURES | st.integers(-(1 << 53), 1 << 53)
LOGPROBS = st.floats(-1e9, 0) | st.sampled_from((-math.inf, math.inf, math.nan))
PIECES = st.lists(st.tuples(TEXTS, LOGPROBS), max_size=5)


@given(PATHS, TEXTS, PIECES, st.booleans(), TEXTS, LOGPROBS)
def test_candidates(
    path: tuple[int, ...], step: str, pieces: list[tuple[str, float]], finished: bool, finish: str, logprob: float
) -> None:
    tokens = {"pieces": tuple(piece for piece, _ in pieces), "logprobs": tuple(own for _, own in pieces)}
    one = CandidateRecord(
        path=path, step=step, finish=finish or None, finished=finished, tokens=len(pieces), logprob=logprob, **tokens
    )
    line = encode(Expanded(at=7.0, instance=step, operator="1.0", candidates=(one,)), 5.0)
    # No other reader of JSON knows `Infinity`.
    json.loads(line, parse_constant=pytest.fail)
    event = decode(line)
    assert isinstance(event, Expanded) and (event.at, event.instance) == (2.0, step)
    (read,) = event.candidates
    assert (read.path, read.step, read.finish, read.finished, read.tokens, read.pieces) == (
        *(path, step, finish or None, finished, len(pieces)),
        tokens["pieces"],
    )
    assert np.allclose(read.logprob, logprob, rtol=0, atol=1e-6, equal_nan=True)
    assert np.allclose(read.logprobs, tokens["logprobs"], rtol=0, atol=1e-4, equal_nan=True)


@given(st.lists(st.tuples(PATHS, SCALARS), max_size=5), TEXTS)
def test_columns_and_choices(told: list[tuple[tuple[int, ...], str | float | bool | None]], name: str) -> None:
    paths, values = tuple(path for path, _ in told), tuple(value for _, value in told)
    line = encode(Valued(at=1.0, instance="a", operator="1", column=name, paths=paths, values=values, scores=True), 0.0)
    event = decode(line)
    assert isinstance(event, Valued) and (event.column, event.paths) == (name, paths)
    for read, value in zip(event.values, values, strict=True):
        assert type(read) is type(value)
        assert read == value or math.isclose(read, value, abs_tol=1e-6)  # type: ignore[arg-type]
    choice = Selected(at=1.0, instance="a", operator="1", kept=paths, dropped=(), group=name, aside=(name,))
    assert decode(encode(choice, 0.0)) == choice


def test_what_is_no_number_is_written_as_none_and_numpy_s_are_numbers() -> None:
    values = (math.nan, math.inf, np.float64(0.5), np.float32(0.25))
    event = Valued(instance="a", operator="1", column="x", paths=((0,),) * 4, values=values, scores=True)
    assert json.loads(encode(event, 0.0))["values"] == [None, None, 0.5, 0.25]


def test_what_is_as_usual_is_not_written() -> None:
    assert encode(OperatorStarted(at=1.0, instance="a", operator="1", rows_in=4), 0.0) == (
        '{"kind":"OperatorStarted","instance":"a","operator":"1","rows_in":4,"at":1.000000}'
    )
    called = ToolCalled(at=1.0, instance="a", operator="1", tool="t", seconds=0.5, made=False)
    assert json.loads(encode(called, 0.0))["made"] is False
    figures = {"rows_in": 1, "rows_out": 1, "prompt_tokens": 0, "sampled_tokens": 0, "seconds": 0.25}
    done = OperatorDone(at=1.0, instance="a", operator="1", counts={"é": 3}, rounds=(2,), **figures)  # type: ignore[arg-type]
    assert decode(encode(done, 0.0)) == done

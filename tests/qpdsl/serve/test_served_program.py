"""Whose text is streamed: that of the last `generate`, where it makes one row and its text is the answer."""

from __future__ import annotations

import pytest

from qpdsl.planner.plan.physical import everything
from qpdsl.serve.served_program import text_stage
from qpdsl.session.planning import Planning
from qpdsl.session.programs import load_program
from qpdsl.session.settings import SessionSettings
from qpdsl.session.surroundings import Surroundings


def stage_of(pipeline: str, n: int = 1) -> int | None:
    program = load_program(None, pipeline, None, Surroundings(models={"llm": "zoo/counting"}))
    plan = Planning().optimized(program, ("text",), SessionSettings()).plan
    assert list(everything(plan.ops))
    return text_stage(plan, {"q": "x", "n": n})


@pytest.mark.parametrize(
    "pipeline",
    [
        "chat user=q | generate llm",
        "chat user=q | generate llm n=3 | keep 1 by logprob | chat user=text | generate llm",
        "chat user=q | generate llm n=3 | vote text | chat user=text | generate llm",
        "chat user=q | generate llm | extract a=/(.)/ | return text",
        "chat user=q | generate llm n=n | return text",
    ],
)
def test_streamed(pipeline: str) -> None:
    assert stage_of(pipeline) is not None


@pytest.mark.parametrize(
    "pipeline",
    [
        "chat user=q | generate llm n=2",
        "chat user=q | generate llm n=3 | keep 1 by logprob",
        "chat user=q | generate llm n=3 | chat user=text | generate llm",
        "chat user=q | generate llm max_tokens=3 | generate llm",
        "chat user=q | generate llm | extract a=/(.)/ | return a",
        "chat user=q | repeat 3 { generate llm max_tokens=3 }",
    ],
)
def test_not_streamed(pipeline: str) -> None:
    assert stage_of(pipeline) is None


def test_an_option_that_a_request_sets() -> None:
    assert stage_of("chat user=q | generate llm n=n | return text", n=2) is None

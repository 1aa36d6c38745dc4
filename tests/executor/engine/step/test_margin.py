"""Margins: read again, a draw has the winner that was drawn, by a lead that says whether it was a near tie."""

from __future__ import annotations

import asyncio
import math

import pytest

from qpdsl.executor.engine.step.margin import Margin
from qpdsl.session.prepare import bind_program, prepare
from qpdsl.session.session import Session
from qpdsl.session.settings import Settings

PROBLEM = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"


@pytest.mark.parametrize(
    "options",
    [
        "temperature=0",
        "n=3 temperature=1.3",
        "n=2 temperature=1 top_k=5 top_p=0.9",
        "n=2 temperature=1 repetition_penalty=1.3 presence_penalty=0.4",
        "n=2 temperature=1 as /[a-z ]{3,20}[0-9]+/",
    ],
)
def test_the_token_that_was_drawn_wins_again(options: str) -> None:
    pipeline = f"chat user=problem | generate llm max_tokens=12 {options}"
    drawn, margins = asyncio.run(_drawn_again(pipeline))
    assert [margin.token for margin in margins] == drawn and len(drawn) > 4
    assert all(margin.gap >= 0 and margin.second != margin.token for margin in margins)
    assert all(margin.near_tie == (margin.gap < 1e-4) for margin in margins if margin.gap < 1e-4)
    assert all(margin.second is not None for margin in margins if margin.gap < math.inf)


async def _drawn_again(pipeline: str) -> tuple[list[int], list[Margin]]:
    """The tokens that a pipeline draws, and the margin of each."""
    settings = Settings(pipeline=pipeline, assigned=(f"problem={PROBLEM}",))
    plan = prepare(bind_program(settings), settings).plan
    session = Session()
    session.load(plan)
    tokens: list[int] = []
    margins: list[Margin] = []
    async with session.running():
        with session.keeping_draws() as kept:
            await session.run(plan, {"problem": PROBLEM}, 7, "row")
        for drawn in kept.samples("row"):
            own = drawn.sample.tokens
            for place, token in enumerate(own):
                found = await session.margin(drawn.draw(place))
                assert found is not None
                tokens.append(token)
                margins.append(found)
    return tokens, margins

"""Log-probabilities of drawn tokens: those of a pass over them as a prompt, to the bit, and those that they came by."""

from __future__ import annotations

import asyncio
import math

import pytest
import torch

from qpdsl.executor.engine.step.margin import TokenLogprobs
from qpdsl.executor.requests.request import LogProbRequest, ReadRequest
from qpdsl.executor.runtime.instance.kept_draws import PlacedSample
from qpdsl.session.prepare import bind_program, prepare
from qpdsl.session.session import Session
from qpdsl.session.settings import Settings

PROBLEM = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"

# A sample, what is told of it, the model's own log-probabilities of its tokens, and all logits at each.
Seen = tuple[PlacedSample, TokenLogprobs, tuple[float, ...], torch.Tensor]


async def _seen(pipeline: str) -> list[Seen]:
    settings = Settings(pipeline=pipeline, assigned=(f"problem={PROBLEM}",))
    plan = prepare(bind_program(settings), settings).plan
    session, found = Session(), []
    session.load(plan)
    async with session.running():
        with session.keeping_draws() as kept:
            await session.run(plan, {"problem": PROBLEM}, 7, "row")
        for drawn in kept.samples("row"):
            told, tokens = await session.logprobs(drawn), drawn.sample.tokens
            assert told is not None
            prompt = drawn.request.prompt
            forced = await session.engine.submit(drawn.model, LogProbRequest(prompt, tokens))
            whole = (*prompt, *tokens[:-1])
            places = tuple(range(len(prompt) - 1, len(whole)))
            width = session.text_model(drawn.model).width
            logits = await session.engine.submit(drawn.model, ReadRequest(whole, places, tuple(range(width))))
            found.append((drawn, told, forced.logprobs, torch.tensor(logits.logits, dtype=torch.float64)))
    return found


@pytest.mark.parametrize(
    "options",
    ["", "temperature=0", "temperature=0.7", "temperature=1.3 top_k=5 top_p=0.9", "as /[a-z ]{3,20}[0-9]+/"],
)
def test_they_are_those_of_a_forced_pass_and_those_of_the_draw(options: str) -> None:
    seen = asyncio.run(_seen(f"chat user=problem | generate llm n=2 max_tokens=12 {options}"))
    assert sum(len(drawn.sample.tokens) for drawn, *_ in seen) > 4
    for drawn, told, forced, logits in seen:
        assert told.model == forced
        ids = torch.tensor(drawn.sample.tokens)[:, None]
        temperature = drawn.request.sampling.temperature
        own = (logits / (temperature or 1.0)).log_softmax(-1).gather(1, ids)[:, 0].tolist()
        if options == "temperature=0":
            assert told.drawn == (0.0,) * len(ids)
        elif options == "":
            assert told.drawn == told.model
        elif "top_k" in options or "as" in options:
            # What may be drawn is less, so what is drawn is more probable, and nothing is impossible.
            assert all(low - 1e-6 <= value <= 0 for low, value in zip(own, told.drawn, strict=True))
            assert any(value > low + 1e-6 for low, value in zip(own, told.drawn, strict=True))
        else:
            assert told.drawn == pytest.approx(own, abs=1e-5)
        if options == "temperature=0.7":
            assert math.fsum(told.drawn) > math.fsum(told.model)
        # What the draw itself told, in 32 bits, over the ids that its mask allowed.
        if drawn.sample.logprobs and "as" not in options and any(drawn.sample.logprobs):
            assert told.model == pytest.approx(drawn.sample.logprobs, abs=1e-4)

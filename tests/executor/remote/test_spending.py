"""What is counted as paid for, and what a bound on it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from qpdsl.executor.remote.meter import Meter
from qpdsl.executor.remote.remote_engine import RemoteEngine
from qpdsl.executor.requests.errors import BudgetReached, EngineError
from qpdsl.executor.requests.request import (
    Completion,
    ReadRequest,
)
from tests.support.remote.scripted_requests import by_seed, one, piece, stopping
from tests.support.remote.scripted_server import (
    ABILITIES,
    Body,
    Pieces,
    ScriptedServer,
    answer,
    driven,
    wanted,
)

pytestmark = pytest.mark.usefixtures("soon")


def test_a_budget_ends_what_was_not_sent() -> None:
    meter = Meter(tokens=60)
    server = ScriptedServer(by_seed)

    async def use(engine: RemoteEngine) -> None:
        assert len((await engine.submit("llm", wanted(keys=(1, 2)))).samples) == 2
        with pytest.raises(BudgetReached, match="tokens are spent, and 60 are allowed"):
            await engine.submit("llm", wanted(keys=tuple(range(100))))
        with pytest.raises(BudgetReached):
            await engine.submit("llm", wanted())

    driven(server, use, meter=meter)
    # Eight were under way when the bound was reached.
    assert 60 <= meter.tokens <= 60 + 8 * 10 and len(server.bodies) < 20


def test_what_was_cut_is_paid_for_too() -> None:
    """The server's count comes last, so an answer that is closed has none."""

    def script(body: Body, number: int) -> httpx.Response:
        return Pieces(piece(" one"), piece(" two"), piece(";"), *[piece(" more")] * 100).response

    meter = Meter(tokens=20)

    async def use(engine: RemoteEngine) -> Completion:
        first = await engine.submit("llm", stopping(";", text="x" * 60))
        with pytest.raises(BudgetReached):
            await engine.submit("llm", stopping(";"))
        return first

    completion = driven(ScriptedServer(script), use, meter=meter)
    assert (completion.calls.prompt_tokens, completion.calls.sampled_tokens, meter.tokens) == (20, 3, 23)
    counted = [{**piece(" one;"), "usage": {"prompt_tokens": 9, "completion_tokens": 2}}, piece(" more")]
    told = driven(ScriptedServer(lambda _, number: Pieces(*counted).response), one(stopping(";")))
    assert (told.calls.prompt_tokens, told.calls.sampled_tokens) == (9, 2)


def test_what_the_server_gave_up_is_paid_for_too() -> None:
    """A whole answer that cannot be used tells what it took all the same."""
    useless = {"choices": [{"text": "a", "finish_reason": "content_filter"}]}
    useless["usage"] = {"prompt_tokens": 7, "completion_tokens": 4}
    meter = Meter()
    with pytest.raises(EngineError, match="content_filter"):
        driven(ScriptedServer(lambda _, number: useless), one(wanted()), meter=meter)
    assert meter.tokens == 11


def test_a_reading_that_tells_nothing_is_paid_for_too() -> None:
    able = replace(ABILITIES, endpoint="ids", scores="classify")
    server = ScriptedServer(lambda _, number: {"data": [{}], "usage": {"prompt_tokens": 3}})
    meter = Meter()
    with pytest.raises(EngineError):
        driven(server, one(ReadRequest((1, 2, 3), (2,), (0,))), abilities=able, meter=meter)
    assert meter.tokens == 3


@pytest.mark.parametrize(
    "usage",
    [{}, {"prompt_tokens": "7"}, {"completion_tokens": -1}, {"prompt_tokens": None}, {"prompt_tokens": 10**400}],
)
def test_strange_counts_are_none(usage: Any) -> None:
    server = ScriptedServer(lambda _, number: {**answer(" It is 4."), "usage": usage})
    calls = driven(server, one(wanted())).calls
    # What is known is counted: the prompt's length, and one piece.
    assert (calls.prompt_tokens, calls.sampled_tokens) == (6, 1)

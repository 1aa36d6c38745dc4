"""What a server is asked about given tokens, and that its answers are the numbers of its model."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from qpdsl.executor.remote.dialects.dialect import BadAnswer, Question, Values
from qpdsl.executor.remote.probe.scoring_probe import with_scoring
from qpdsl.executor.remote.scoring import positions_of, scored
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.connection import Connection
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Calls, Completion, LogProbRequest, ReadRequest, Request, TreeRequest
from tests.support.remote.stub_server import StubServer, language, reward_of, stub

PROMPT = (12, 40, 33, 7, 200, 91, 45, 60, 18, 77, 130, 21)
LONG = tuple(20 + number % 90 for number in range(400))
TEXT = "Ann has 12 apples. She buys 7 more. How many are there now?"
REQUESTS = (
    LogProbRequest(PROMPT, (20, 21, 22)),
    LogProbRequest(PROMPT, (20, 21), (4,)),
    LogProbRequest(PROMPT, (), (4, 5)),
    LogProbRequest(LONG, (20, 21), (4, 5)),
    TreeRequest(PROMPT, ((20,), (20, 21), (25, 26, 27)), (4,)),
    TreeRequest(PROMPT, ((20,), (21,)), ()),
    TreeRequest(LONG, ((20,), (20, 21), (25, 26, 27)), (4, 6)),
    ReadRequest(PROMPT, (0, 4, 11), (300, 301)),
)
VLLM = ServerCapabilities("ids", prompt_logprobs=True, top_logprobs=20, named_logprobs=True)
# By the kind of server: the dialect that it is spoken to in, and what it was seen to do.
SERVERS = {
    "vllm": ("vllm", VLLM),
    "vllm without named ids": ("vllm", replace(VLLM, named_logprobs=False)),
    "vllm with named ids alone": ("vllm", replace(VLLM, prompt_logprobs=False)),
    "vllm under its OpenAI face": ("openai", replace(VLLM, named_logprobs=False, top_logprobs=0)),
    "sglang": ("sglang", VLLM),
}


def reader(server: StubServer) -> tuple[Connection, Callable[[Question], Any]]:
    connection = Connection(server.url)

    async def read(reading: Question) -> tuple[Values, Calls]:
        return reading.read(await connection.post(reading.path, reading.body)), Calls(requests=1)

    return connection, read


def ask(server: StubServer, dialect: str, capabilities: ServerCapabilities, *requests: Request) -> list[Completion]:
    """The completions of requests by a stub."""
    address = Address(dialect, server.url, server.model, "zoo/counting")  # type: ignore[arg-type]

    async def asked() -> list[Completion]:
        connection, read = reader(server)
        try:
            return [await scored(request, capabilities, address, read) for request in requests]  # type: ignore[arg-type]
        finally:
            await connection.close()

    return asyncio.run(asked())


def found(server: StubServer, dialect: str) -> ServerCapabilities:
    """What a stub is seen to do."""
    address = Address(dialect, server.url, server.model, "zoo/counting")  # type: ignore[arg-type]

    async def asked() -> ServerCapabilities:
        connection, read = reader(server)
        try:
            return await with_scoring(ServerCapabilities("ids"), address, language().encode(TEXT), read)
        finally:
            await connection.close()

    return asyncio.run(asked())


def expected(request: Any) -> list[tuple[float, ...]]:
    """What the model behind the stubs says at each place."""
    rows = [(language().logprobs(place.context), place.groups) for place in positions_of(request)]
    return [tuple(math.log(sum(math.exp(row[id]) for id in group)) for group in groups) for row, groups in rows]


@pytest.mark.parametrize("name", SERVERS)
def test_numbers_of_the_servers_model(name: str) -> None:
    dialect, capabilities = SERVERS[name]
    with stub("sglang" if dialect == "sglang" else "vllm") as server:
        completions = ask(server, dialect, capabilities, *REQUESTS)
    for request, completion in zip(REQUESTS, completions, strict=True):
        wanted = request.completion(expected(request), 0)
        assert completion.logprobs == pytest.approx(wanted.logprobs, abs=1e-9)
        # Of logits the differences count.
        for told, row in zip(completion.logits, wanted.logits, strict=True):
            assert told[0] - told[1] == pytest.approx(row[0] - row[1], abs=1e-9)
        assert completion.calls is not None and completion.calls.requests >= 1


def test_steps_are_read_by_requests_of_their_own_so_that_the_prefix_cache_helps() -> None:
    with stub("vllm") as server:
        ask(server, "vllm", VLLM, ReadRequest(PROMPT, (4, 11), (300, 301)))
        assert sorted(body["prompt"] for body in server.bodies) == [list(PROMPT[:5]), list(PROMPT)]
        assert not any("prompt_logprobs" in body for body in server.bodies)


def test_long_text_is_one_request_and_long_prompts_of_short_answers_are_not_computed_anew() -> None:
    with stub("vllm") as server:
        ask(server, "vllm", VLLM, LogProbRequest(PROMPT, LONG[:100]))
        assert len(server.bodies) == 1 and server.bodies[0]["prompt_logprobs"] == 0
    with stub("vllm") as server:
        ask(server, "vllm", VLLM, TreeRequest(LONG, ((20,), (21,), (22,)), (4,)))
        assert len(server.bodies) == 4 and not any("prompt_logprobs" in body for body in server.bodies)


def test_an_id_that_is_not_told_is_an_error_and_not_a_guess() -> None:
    words = "did not return the log-probability of token 300"
    with stub("vllm", named_logprobs=False) as server, pytest.raises(EngineError, match=words):
        ask(server, "vllm", replace(VLLM, prompt_logprobs=False), ReadRequest(PROMPT, (4,), (300, 301)))


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        {"choices": [{"prompt_logprobs": None}]},
        {"choices": [{"prompt_logprobs": [None]}]},
        {"choices": [{"prompt_logprobs": [None] * 13}]},
        {"choices": [{"prompt_logprobs": [None] + [{"999": {"logprob": -1.0}}] * 12}]},
        {"choices": [{"prompt_logprobs": [None] + [{"20": {"logprob": "x"}}] * 12}]},
        {"choices": [{"prompt_logprobs": [None] + [{"20": {"logprob": 3.5}}] * 12}]},
        {"choices": [{"prompt_logprobs": [None] + [{"20": {"logprob": math.nan}}] * 12}]},
    ],
)
def test_answers_of_another_shape(answer: Any) -> None:
    async def read(reading: Question) -> tuple[Values, Calls]:
        return reading.read(answer), Calls()

    address = Address("vllm", "http://127.0.0.1:1/v1", "m", "zoo/counting")
    with pytest.raises(BadAnswer):
        asyncio.run(scored(LogProbRequest(PROMPT, (20,)), replace(VLLM, named_logprobs=False), address, read))


@pytest.mark.parametrize("rows", ["tokens", "steps"])
@pytest.mark.parametrize("shares", [False, True])
def test_scores_at_every_step(rows: str, shares: bool) -> None:
    tokens = (5, 6, 9, 7, 9, 8, 9)
    with stub("vllm", reward=True, reward_rows=rows, reward_shares=shares) as server:
        capabilities = ServerCapabilities("ids", scores="pooling", score_width=2, score_shares=shares)
        (completion,) = ask(server, "vllm", capabilities, ReadRequest(tokens, (4, 6), (0, 1)))
        assert len(server.asked) == 1
    for position, (no, yes) in zip((4, 6), completion.logits, strict=True):
        assert 1 / (1 + math.exp(no - yes)) == pytest.approx(reward_of(list(tokens[: position + 1])), abs=1e-9)


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_scores_at_the_last_token(dialect: str) -> None:
    tokens = (5, 6, 9, 7, 9, 8, 9)
    with stub(dialect, reward=True) as server:
        capabilities = ServerCapabilities("ids", scores="classify", score_width=2)
        (completion,) = ask(server, dialect, capabilities, ReadRequest(tokens, (4, 6), (0, 1)))
    for position, (no, yes) in zip((4, 6), completion.logits, strict=True):
        assert 1 / (1 + math.exp(no - yes)) == pytest.approx(reward_of(list(tokens[: position + 1])), abs=1e-9)


def test_rows_of_other_marks_than_the_steps() -> None:
    with stub("vllm", reward=True, reward_rows="steps") as server:
        capabilities = ServerCapabilities("ids", scores="pooling", score_width=2)
        with pytest.raises(BadAnswer, match="returned 3 rows for 7 tokens"):
            ask(server, "vllm", capabilities, ReadRequest((5, 6, 9, 7, 9, 8, 9), (5, 6), (0, 1)))


def test_what_a_language_models_server_is_seen_to_read() -> None:
    with stub("vllm") as server:
        assert found(server, "vllm") == VLLM
        assert len(server.bodies) < 8
    with stub("vllm", named_logprobs=False, top_logprobs=5) as server:
        assert found(server, "vllm") == replace(VLLM, named_logprobs=False, top_logprobs=5)
    with stub("vllm", prompt_logprobs=False, named_logprobs=False) as server:
        assert found(server, "vllm") == ServerCapabilities("ids")
    with stub("sglang") as server:
        seen = found(server, "sglang")
        assert seen.prompt_logprobs and seen.named_logprobs
    with stub("llama-server") as server:
        assert found(server, "llamacpp") == ServerCapabilities("ids")


def test_what_a_reward_models_server_is_seen_to_give() -> None:
    with stub("vllm", reward=True) as server:
        assert found(server, "vllm") == ServerCapabilities("ids", scores="pooling", score_width=2)
    with stub("vllm", reward=True, reward_shares=True) as server:
        assert found(server, "vllm").score_shares
    with stub("sglang", reward=True) as server:
        assert found(server, "sglang") == ServerCapabilities("ids", scores="classify", score_width=2)

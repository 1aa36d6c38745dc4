"""The engine of models on servers: what it sends, when, and what becomes of the answers."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from qpdsl import zoo
from qpdsl.executor.remote.completion_store import CompletionStore
from qpdsl.executor.remote.meter import Meter
from qpdsl.executor.remote.remote_engine import RemoteEngine
from qpdsl.executor.remote.server import retries
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.text_tokenizer import EOS
from qpdsl.executor.requests.errors import BudgetReached, EngineError, ServerGone
from qpdsl.executor.requests.request import (
    Completion,
    Constraint,
    GenerateRequest,
    Owner,
    ReadRequest,
    SamplingParams,
)
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.text.stop import Stops, StopWatch
from tests.support.remote.scripted_server import (
    ABILITIES,
    ADDRESS,
    Body,
    Pieces,
    ScriptedServer,
    answer,
    driven,
    model_of,
    until,
    wanted,
)

IDS = Address("vllm", ADDRESS.url, "name", "zoo/counting")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a retry here."""
    monkeypatch.setattr(retries, "_FIRST", 0.002)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CompletionStore]:
    made = CompletionStore(tmp_path / "completions.sqlite")
    yield made
    made.close()


def by_seed(body: Body, number: int) -> Body:
    return answer(f" It is {body['seed'] % 100}.")


def piece(text: str, finish: str | None = None, **more: Any) -> Body:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]}


def text_of(completion: Completion) -> list[str]:
    return [bytes(token for token in sample.tokens if token < 256).decode() for sample in completion.samples]


def stopping(stop: str, **more: Any) -> GenerateRequest:
    """A request whose samples end at a text."""
    detokenizer = model_of().detokenizer
    return wanted(watch=lambda index: StopWatch(detokenizer, Stops((stop,))), stops=(stop,), **more)


def one(request: GenerateRequest | ReadRequest) -> Any:
    async def use(engine: RemoteEngine) -> Completion:
        return await engine.submit("llm", request)

    return use


def test_a_sample_is_a_request_with_a_seed_of_its_own() -> None:
    server = ScriptedServer(by_seed)
    completion = driven(server, one(wanted(keys=(1, 2, 3))))
    assert len({body["seed"] for body in server.bodies}) == 3
    assert all("n" not in body and body["prompt"] == "Question: 2 + 2?" for body in server.bodies)
    assert [sample.finish for sample in completion.samples] == ["eos"] * 3
    assert [sample.tokens[-1] for sample in completion.samples] == [EOS] * 3
    assert [sample.size for sample in completion.samples] == [3] * 3
    assert text_of(completion) == [f" It is {body['seed'] % 100}." for body in server.bodies]
    assert (completion.calls.requests, completion.calls.prompt_tokens, completion.calls.sampled_tokens) == (3, 21, 9)
    # What is neutral is said too: a server's defaults are others.
    assert (server.bodies[0]["top_p"], server.bodies[0]["repetition_penalty"]) == (1.0, 1.0)


def test_a_seed_depends_on_the_key_and_on_what_was_drawn_alone() -> None:
    def seeds(*requests: GenerateRequest) -> list[int]:
        server = ScriptedServer(by_seed)

        async def use(engine: RemoteEngine) -> None:
            for request in requests:
                await engine.submit("llm", request)

        driven(server, use)
        return [body["seed"] for body in server.bodies]

    together, apart = seeds(wanted(keys=(5, 6))), seeds(wanted(keys=(5,)), wanted(keys=(6,)))
    assert together == apart
    assert len({*together, *seeds(wanted(keys=(5,), drawn=3))}) == 3
    assert all(0 < seed < 2**31 - 1 for seed in together)
    assert len(set(seeds(wanted(keys=(5, 6), sampling=SamplingParams(0.0))))) == 1


def test_a_row_with_many_samples_does_not_hold_up_another() -> None:
    server = ScriptedServer(by_seed)

    async def use(engine: RemoteEngine) -> None:
        many = engine.submit("llm", wanted("many", tuple(range(40)), owner=Owner("first")))
        few = engine.submit("llm", wanted("few", (1,), owner=Owner("second")))
        await few
        await many

    driven(server, use)
    assert [body["prompt"] for body in server.bodies].index("few") <= 12


@pytest.mark.parametrize(
    "failure",
    [
        httpx.Response(500, text="oops"),
        httpx.Response(503),
        httpx.Response(200, headers={"content-type": "application/json"}, content=b'{"choices": [{"te'),
        httpx.Response(200, json={"choices": [{"text": " It", "finish_reason": None}]}),
        httpx.Response(200, json={"error": {"message": "CUDA ran out of luck", "code": 500}}),
        httpx.ReadError("reset by peer"),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout(""),
    ],
)
def test_what_passes_is_asked_again(failure: httpx.Response | Exception) -> None:
    server = ScriptedServer(lambda body, number: failure if number < 2 else by_seed(body, number))
    completion = driven(server, one(wanted()))
    assert server.bodies[0] == server.bodies[1] == server.bodies[2]
    assert (completion.calls.requests, completion.calls.retries) == (3, 2)


def test_the_server_says_when_to_come_again() -> None:
    late = httpx.Response(429, headers={"retry-after": "0.3"})
    server = ScriptedServer(lambda body, number: late if number == 0 else by_seed(body, number))

    async def use(engine: RemoteEngine) -> float:
        begun = time.monotonic()
        first = engine.submit("llm", wanted())
        await asyncio.sleep(0.05)
        # Another request does not go before that either.
        await engine.submit("llm", wanted("another"))
        await first
        return time.monotonic() - begun

    assert driven(server, use) >= 0.3


def test_a_storm_of_refusals_is_ridden_out() -> None:
    def script(body: Body, number: int) -> httpx.Response | Body:
        return httpx.Response(429) if number < 60 else by_seed(body, number)

    server = ScriptedServer(script)
    completion = driven(server, one(wanted(keys=tuple(range(30)))))
    assert len(completion.samples) == 30 and completion.calls.retries == 60


def test_what_the_server_refuses_is_said_in_its_words() -> None:
    def script(body: Body, number: int) -> httpx.Response | Body:
        if body["prompt"] == "long":
            return httpx.Response(400, json={"error": {"message": "maximum context length is 1024"}})
        return by_seed(body, number)

    server = ScriptedServer(script)

    async def use(engine: RemoteEngine) -> None:
        other = engine.submit("llm", wanted())
        with pytest.raises(EngineError, match="answers 400: maximum context length is 1024"):
            await engine.submit("llm", wanted("long", (1, 2, 3)))
        assert len((await other).samples) == 1
        assert engine.busy("llm") == 0

    driven(server, use)


def test_a_request_that_alone_fails_does_not_end_the_run() -> None:
    def script(body: Body, number: int) -> httpx.Response | Body:
        return httpx.Response(500, text="no such luck") if body["prompt"] == "bad" else by_seed(body, number)

    server = ScriptedServer(script)

    async def use(engine: RemoteEngine) -> None:
        bad = engine.submit("llm", wanted("bad"))

        async def others() -> None:
            while True:
                await engine.submit("llm", wanted())
                await asyncio.sleep(0.01)

        task = asyncio.create_task(others())
        with pytest.raises(EngineError, match=r"no such luck; it was asked \d+ times, and answered others"):
            await bad
        task.cancel()

    driven(server, use)


def test_a_server_that_is_gone_ends_the_engine() -> None:
    server = ScriptedServer(lambda body, number: httpx.ConnectError("refused"))
    with pytest.raises(ServerGone, match="cannot be reached: refused; it has answered nothing"):
        driven(server, one(wanted(keys=tuple(range(20)))), patience=0.2)
    # After the first that failed, one goes to see whether it is there again.
    assert len(server.bodies) >= 8


def test_an_engine_that_outlives_a_server_fails_what_waits_for_it() -> None:
    there = False
    server = ScriptedServer(lambda body, number: answer("back") if there else httpx.ConnectError("refused"))

    async def use(engine: RemoteEngine) -> None:
        nonlocal there
        tickets = [engine.submit("llm", wanted(keys=(number, number + 100))) for number in range(8)]
        ended = await asyncio.gather(*map(_awaited, tickets), return_exceptions=True)
        assert {type(end) for end in ended} == {ServerGone} and engine.busy("llm") == 0
        # Those that come later learn of it at once, and of its return.
        asked = len(server.bodies)
        with pytest.raises(ServerGone):
            await engine.submit("llm", wanted())
        assert len(server.bodies) == asked + 1
        there = True
        await engine.submit("llm", wanted())

    driven(server, use, patience=0.2, outlives=True)


async def _awaited(ticket: Ticket) -> Completion:
    return await ticket


def test_no_error_shows_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QPDSL_API_KEYS", f"{ADDRESS.url}=sk-secret")
    for error in ({"message": "no sk-secret", "code": 400}, {"message": "later, sk-secret"}):
        server = ScriptedServer(lambda _, number, error=error: {"error": error})
        with pytest.raises(EngineError) as raised:
            driven(server, one(wanted()), patience=0.1)
        assert "…" in str(raised.value) and "sk-secret" not in str(raised.value)


def test_a_server_that_comes_back_is_gone_on_with() -> None:
    begun = time.monotonic()

    def script(body: Body, number: int) -> Exception | Body:
        return httpx.ConnectError("refused") if time.monotonic() < begun + 0.2 else by_seed(body, number)

    completion = driven(ScriptedServer(script), one(wanted(keys=tuple(range(20)))))
    assert len(completion.samples) == 20


def test_a_stop_ends_the_sample_and_closes_the_stream() -> None:
    body = Pieces(piece(" one"), piece(" t"), piece("wo; three"), *[piece(" more")] * 1000)
    completion = driven(ScriptedServer(lambda _, number: body.response), one(stopping(";")))
    (sample,) = completion.samples
    assert text_of(completion) == [" one two;"] and sample.finish == "stop"
    assert body.closed_early and body.sent == 3


def test_a_stop_is_sent_where_the_server_names_it() -> None:
    named = answer(" one two;", stop_reason=";")
    server = ScriptedServer(lambda _, number: named)
    completion = driven(server, one(stopping(";")), abilities=replace(ABILITIES, names_stop=True))
    assert server.bodies[0]["stop"] == [";"] and server.bodies[0]["include_stop_str_in_output"] is True
    assert text_of(completion) == [" one two;"] and completion.samples[0].finish == "stop"
    server = ScriptedServer(lambda _, number: answer(" one two", stop_reason=";"))
    with pytest.raises(EngineError, match="ended at ';', which its answer does not have"):
        driven(server, one(stopping(";")), abilities=replace(ABILITIES, names_stop=True))


def test_a_stream_that_breaks_off_is_read_again_and_shown_once() -> None:
    shown: list[str] = []
    detokenizer = model_of().detokenizer
    request = wanted(watch=lambda index: StopWatch(detokenizer, None, shown.append))
    half = [piece(" one"), piece(" two")]

    def script(body: Body, number: int) -> httpx.Response:
        done = number == 1
        return Pieces(*half, *([piece(" three", "stop")] if done else []), done=done).response

    completion = driven(ScriptedServer(script), one(request))
    assert text_of(completion) == [" one two three"] and "".join(shown) == " one two three"
    assert completion.calls.retries == 1
    assert completion.samples[0].watch.pushed == len(" one two three")  # type: ignore[union-attr]


def test_another_answer_after_a_break_is_looked_at_from_its_beginning() -> None:
    def script(body: Body, number: int) -> httpx.Response:
        words = (" one", " two") if number == 0 else (" uno", "; due")
        return Pieces(*map(piece, words), done=False).response

    assert text_of(driven(ScriptedServer(script), one(stopping(";")))) == [" uno;"]


def test_cancelling_closes_what_is_under_way_and_forgets_the_rest() -> None:
    async def never(body: Body) -> Body:
        await asyncio.sleep(60)
        return answer("")

    server = ScriptedServer(lambda body, number: never(body))

    async def use(engine: RemoteEngine) -> None:
        ticket = engine.submit("llm", wanted(keys=tuple(range(20))))
        other = engine.submit("llm", wanted("other"))
        await until(lambda: server.in_flight == 8)
        assert engine.busy("llm") == 21
        assert engine.counts("llm").in_flight == 8
        ticket.cancel()
        await until(lambda: (server.given_up, server.in_flight) == (8, 1))
        assert engine.busy("llm") == 1
        other.cancel()
        await until(lambda: server.in_flight == 0)
        assert (engine.busy("llm"), len(server.bodies)) == (0, 9)

    driven(server, use)


def test_what_was_under_way_is_begun_anew_by_the_next_drive() -> None:
    async def slow(body: Body) -> Body:
        await asyncio.sleep(0.05)
        return by_seed(body, 0)

    server = ScriptedServer(lambda body, number: slow(body))
    engine = RemoteEngine(transport=server.transport)
    engine.add("llm", ADDRESS, ABILITIES, model_of())

    async def first() -> Any:
        driver = asyncio.create_task(engine.drive())
        ticket = engine.submit("llm", wanted(keys=tuple(range(12))))
        await asyncio.sleep(0.02)
        driver.cancel()
        await asyncio.gather(driver, return_exceptions=True)
        assert len(asyncio.all_tasks()) == 1 and not ticket.done
        return ticket

    async def second(ticket: Any) -> Completion:
        driver = asyncio.create_task(engine.drive())
        completion: Completion = await ticket
        driver.cancel()
        await asyncio.gather(driver, return_exceptions=True)
        return completion

    ticket = asyncio.run(first())
    assert len(asyncio.run(second(ticket)).samples) == 12
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        gc.collect()


def test_a_rerun_asks_for_nothing(store: CompletionStore) -> None:
    server = ScriptedServer(by_seed)
    first = driven(server, one(wanted(keys=(1, 2, 3))), store=store)
    again = driven(server, one(wanted(keys=(1, 2, 3))), store=store)
    assert len(server.bodies) == 3 and again.samples == first.samples
    assert (again.calls.requests, again.calls.replayed, again.calls.sampled_tokens) == (0, 3, 9)
    # A plan that asks for them one by one, and shows them, gets the same.
    shown: list[str] = []
    watched = wanted(keys=(2,), watch=lambda index: StopWatch(model_of().detokenizer, None, shown.append))
    alone = driven(server, one(watched), store=store)
    assert len(server.bodies) == 3 and alone.samples[0].tokens == first.samples[1].tokens
    assert "".join(shown) == text_of(alone)[0]


@pytest.mark.parametrize(
    "other",
    [
        {"text": "another"},
        {"keys": (4,)},
        {"drawn": 1},
        {"max_tokens": 51},
        {"sampling": SamplingParams(0.7)},
        {"sampling": SamplingParams(0.8, top_p=0.9)},
        {"stops": ("x",)},
    ],
)
def test_another_request_is_asked(store: CompletionStore, other: dict[str, Any]) -> None:
    server = ScriptedServer(by_seed)
    driven(server, one(wanted()), store=store)
    driven(server, one(wanted(**other)), store=store)
    assert len(server.bodies) == 2


def test_another_server_or_version_is_asked(store: CompletionStore) -> None:
    server = ScriptedServer(by_seed)
    driven(server, one(wanted()), store=store)
    driven(server, one(wanted()), store=store, abilities=replace(ABILITIES, version="2"))
    driven(server, one(wanted()), store=store, address=replace(ADDRESS, url="http://127.0.0.1:8001/v1"))
    assert len(server.bodies) == 3


def test_an_answer_that_was_cut_serves_where_it_is_cut_again(store: CompletionStore) -> None:
    server = ScriptedServer(lambda _, number: Pieces(piece(" one;"), piece(" two;", "stop")).response)
    for expected in (1, 1):
        assert text_of(driven(server, one(stopping(";")), store=store)) == [" one;"]
        assert len(server.bodies) == expected
    # The same stops in the request, and a watch that goes on: what was kept does not reach.
    on = wanted(watch=lambda index: StopWatch(model_of().detokenizer, None), stops=(";",))
    assert text_of(driven(server, one(on), store=store)) == [" one; two;"] and len(server.bodies) == 2


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\0\0",
        b"{}",
        b'["a", null, ["x"], [1], "stop", null, 1, 0, 1]',
        b'["a", ["x"], [], [], "stop", null, 1, 0, 1]',
        b'["a", null, [], [null], "stop", null, 1, 0, 1]',
        b'["a", null, [], [], "stop", null, "1", 0, 1]',
    ],
)
def test_what_is_kept_and_no_answer_is_asked_again(
    store: CompletionStore, damaged: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "find", lambda key: damaged)
    server = ScriptedServer(by_seed)
    assert driven(server, one(wanted()), store=store).calls.replayed == 0 and len(server.bodies) == 1


def test_only_whole_answers_are_kept(store: CompletionStore) -> None:
    broken = [httpx.Response(500), httpx.Response(200, json=piece(" It")), httpx.Response(400)]
    server = ScriptedServer(lambda body, number: broken[number] if number < 3 else by_seed(body, number))
    with pytest.raises(EngineError):
        driven(server, one(wanted()), store=store)
    driven(server, one(wanted()), store=store)
    assert len(server.bodies) == 4


def test_a_store_that_fails_is_told_once_and_the_run_goes_on(store: CompletionStore) -> None:
    store._file.close()
    told: list[str] = []
    completion = driven(ScriptedServer(by_seed), one(wanted(keys=(1, 2, 3))), store=store, tell=told.append)
    assert len(completion.samples) == 3
    assert len(told) == 1 and told[0].startswith("completions are not kept any more")


def test_an_answer_that_breaks_its_constraint_is_no_answer(store: CompletionStore) -> None:
    masks = model_of().constrainer.masks("regex", r"\d+ apples")
    request = wanted(mask=masks, constraint=Constraint("regex", r"\d+ apples"))
    server = ScriptedServer(lambda _, number: answer("12 apples"))
    completion = driven(server, one(request), store=store)
    assert text_of(completion) == ["12 apples"]
    assert server.bodies[0]["structured_outputs"] == {"regex": r"\d+ apples"}
    for wrong in ("12 pears", "twelve", "12"):
        server = ScriptedServer(lambda _, number, text=wrong: answer(text))  # type: ignore[misc]
        with pytest.raises(EngineError, match="asked to hold its answer to a regex, and did not"):
            driven(server, one(replace(request, keys=(9,))), store=store)
    # One that ran out of tokens is a beginning of what was wanted.
    server = ScriptedServer(lambda _, number: answer("12 app", "length"))
    assert driven(server, one(replace(request, keys=(9,))), store=store).samples[0].finish == "length"


def test_what_the_server_ignores_is_refused() -> None:
    server = ScriptedServer(by_seed)
    masked = wanted(mask=model_of().constrainer.masks("grammar", "start: /a/"), constraint=Constraint("grammar", "x"))

    async def use(engine: RemoteEngine) -> None:
        for request, words in (
            (wanted(sampling=SamplingParams(0.8, top_k=5)), "ignores `top_k`"),
            (wanted(sampling=SamplingParams(0.8, min_p=0.1)), "ignores `min_p`"),
            (masked, "cannot hold its output to a grammar"),
            (replace(masked, constraint=None), "cannot hold its output to a grammar"),
            (wanted(figures=True), "does not tell what its tokens were drawn from"),
            (ReadRequest((1, 2), (1,), (3,)), "does not tell the logits"),
        ):
            with pytest.raises(EngineError, match=words):
                engine.submit("llm", request)

    driven(server, use)
    assert not server.bodies


def test_messages_go_to_chats_and_a_begun_answer_is_gone_on_with() -> None:
    model = model_of()
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    ids = tuple(model.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))
    reply = {"choices": [{"message": {"content": " 4"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}
    server = ScriptedServer(lambda _, number: reply)

    async def use(engine: RemoteEngine) -> None:
        await engine.submit("llm", replace(wanted(), prompt=ids))
        await engine.submit("llm", replace(wanted(), prompt=(*ids, *b"It is")))

    driven(server, use)
    first, second = server.bodies
    assert first["messages"] == turns and "continue_final_message" not in first
    assert second["messages"] == [*turns, {"role": "assistant", "content": "It is"}]
    assert (second["continue_final_message"], second["add_generation_prompt"]) == (True, False)

    async def refused(engine: RemoteEngine) -> None:
        with pytest.raises(EngineError, match="cannot go on with an answer that has begun"):
            engine.submit("llm", replace(wanted(), prompt=(*ids, *b"It is")))
        with pytest.raises(EngineError, match="takes chats alone"):
            engine.submit("llm", wanted())

    driven(server, refused, abilities=replace(ABILITIES, prefill=False, endpoint="chat"))


def test_the_first_of_a_fan_out_leads() -> None:
    async def main_use(engine: RemoteEngine) -> None:
        ticket = engine.submit("llm", wanted(keys=(1, 2, 3), lead=True))
        await asyncio.sleep(0.03)
        assert len(server.bodies) == 1
        gates[0].set()
        await until(lambda: len(server.bodies) == 3)
        assert not ticket.done
        done.set()
        assert len((await ticket).samples) == 3

    gates, done = [asyncio.Event()], asyncio.Event()

    async def script(body: Body) -> httpx.Response:
        if body["seed"] == server.bodies[0]["seed"]:
            await gates[0].wait()
        return Pieces(piece(" a"), piece(" b", "stop"), gate=done).response

    server = ScriptedServer(lambda body, number: script(body))
    driven(server, main_use)


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


def test_a_replay_costs_nothing(store: CompletionStore) -> None:
    driven(ScriptedServer(by_seed), one(wanted()), store=store)
    meter = Meter(tokens=1)
    meter.note("name", 1, 0, 0)
    assert len(driven(ScriptedServer(by_seed), one(wanted()), store=store, meter=meter).samples) == 1
    assert meter.tokens == 1


def test_ids_of_tokens_where_the_server_tells_them() -> None:
    address = IDS
    able = replace(ABILITIES, endpoint="ids", token_ids=True, logprobs=True)
    model = model_of(able, address, zoo.path("zoo/counting"))
    eos = min(model.eos)
    ids = [*model.encode(" 3 + 4"), eos]
    told = {"tokens": ["x"] * len(ids), "token_logprobs": [-0.5] * len(ids)}
    server = ScriptedServer(lambda _, number: answer(" 3 + 4", token_ids=ids, logprobs=told))
    request = GenerateRequest(tuple(model.encode("2 + 2")), (1,), SamplingParams(0.8), 50, model.eos)
    (sample,) = driven(server, one(request), abilities=able, address=address, place=zoo.path("zoo/counting")).samples
    assert sample.tokens == tuple(ids) and sample.finish == "eos" and sample.billed is None
    assert sample.logprobs == (-0.5,) * len(ids) and sample.logprob == pytest.approx(-0.5 * len(ids))
    assert server.bodies[0]["prompt"] == list(request.prompt) and server.bodies[0]["return_token_ids"] is True
    missing = ScriptedServer(lambda _, number: answer(" 3 + 4"))
    with pytest.raises(EngineError, match="left the ids of its tokens out"):
        driven(missing, one(request), abilities=able, address=address, place=zoo.path("zoo/counting"))


def test_log_probabilities_are_those_of_the_text_that_was_kept() -> None:
    """However far the server had got, and whether or not it tells of the mark of the end."""

    def of(*pieces: tuple[str, list[tuple[str, float]]], request: GenerateRequest) -> tuple[float, int]:
        events = []
        for number, (text, tokens) in enumerate(pieces):
            told = {"tokens": [token for token, _ in tokens], "token_logprobs": [logprob for _, logprob in tokens]}
            events.append(piece(text, "stop" if number == len(pieces) - 1 else None, logprobs=told))
        server = ScriptedServer(lambda _, number: Pieces(*events).response)
        (sample,) = driven(server, one(request), abilities=replace(ABILITIES, logprobs=True)).samples
        return sample.logprob, sample.size

    tokens = [(" one", -1.0), (";", -2.0), (" two", -4.0)]
    one_by_one = [(text, [(text, logprob)]) for text, logprob in tokens]
    for request, expected in ((stopping(";"), (-3.0, 2)), (stopping("!"), (-7.0, 3))):
        assert of(*one_by_one, request=request) == expected
        assert of((" one; two", tokens), request=request) == expected
    assert of((" one; two", [*tokens, ("", -8.0)]), request=stopping("!"))[0] == -7.0


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


@pytest.mark.parametrize(
    "strange",
    [
        [],
        {"choices": 3},
        {"choices": [[]]},
        {"choices": [{"text": ["a"], "finish_reason": "stop"}]},
        {"choices": [{"text": "a", "finish_reason": {"why": 1}}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "logprobs": {"token_logprobs": [float("-inf")]}}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "logprobs": {"content": [{"token": 3}]}}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "token_ids": [1 << 40]}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "token_ids": [-1]}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "token_ids": "x"}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "token_ids": [float("inf")]}]},
        {"choices": [{"text": "a", "finish_reason": "stop", "logprobs": {"token_logprobs": [10**400]}}]},
    ],
)
def test_strange_answers_end_a_row_and_not_the_engine(strange: Any) -> None:
    able = replace(ABILITIES, endpoint="ids", token_ids=True)
    place = zoo.path("zoo/counting")
    with pytest.raises(EngineError):
        content = json.dumps(strange).encode()
        server = ScriptedServer(lambda _, number: httpx.Response(200, content=content))
        driven(server, one(replace(wanted(), prompt=(1, 2))), abilities=able, address=IDS, place=place)


@pytest.mark.parametrize(
    "usage",
    [{}, {"prompt_tokens": "7"}, {"completion_tokens": -1}, {"prompt_tokens": None}, {"prompt_tokens": 10**400}],
)
def test_strange_counts_are_none(usage: Any) -> None:
    server = ScriptedServer(lambda _, number: {**answer(" It is 4."), "usage": usage})
    calls = driven(server, one(wanted())).calls
    # What is known is counted: the prompt's length, and one piece.
    assert (calls.prompt_tokens, calls.sampled_tokens) == (6, 1)


def test_readings_go_the_same_way(store: CompletionStore) -> None:
    able = replace(ABILITIES, endpoint="ids", scores="classify")
    reply = {"data": [{"probs": [0.25]}], "usage": {"prompt_tokens": 3}}
    server = ScriptedServer(lambda _, number: httpx.Response(503) if number == 0 else httpx.Response(200, json=reply))
    first = driven(server, one(ReadRequest((1, 2, 3), (2,), (0,))), abilities=able, store=store)
    again = driven(server, one(ReadRequest((1, 2, 3), (2,), (0,))), abilities=able, store=store)
    assert len(server.bodies) == 2 and first.logits == again.logits and len(first.logits) == 1
    assert (first.calls.retries, first.calls.prompt_tokens, again.calls.replayed) == (1, 3, 1)

"""The engine of models on servers: what it sends, and what becomes of the answers."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from qpdsl import zoo
from qpdsl.executor.remote.completion_store import CompletionStore
from qpdsl.executor.remote.remote_engine import RemoteEngine
from qpdsl.executor.remote.remote_model import EOS
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import (
    Client,
    GenerateRequest,
    ReadRequest,
    SampleConstraint,
    SamplingParams,
)
from tests.support.remote.scripted_requests import IDS, by_seed, one, piece, stopping, text_of
from tests.support.remote.scripted_server import (
    CAPABILITIES,
    Pieces,
    ScriptedServer,
    answer,
    driven,
    model_of,
    wanted,
)

pytestmark = pytest.mark.usefixtures("soon")


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
        many = engine.submit("llm", wanted("many", tuple(range(40)), client=Client("first")))
        few = engine.submit("llm", wanted("few", (1,), client=Client("second")))
        await few
        await many

    driven(server, use)
    assert [body["prompt"] for body in server.bodies].index("few") <= 12


def test_an_answer_that_breaks_its_constraint_is_no_answer(store: CompletionStore) -> None:
    masks = model_of().constrainer.masks("regex", r"\d+ apples")
    request = wanted(mask=masks, constraint=SampleConstraint("regex", r"\d+ apples"))
    server = ScriptedServer(lambda _, number: answer("12 apples"))
    completion = driven(server, one(request), store=store)
    assert text_of(completion) == ["12 apples"]
    assert server.bodies[0]["structured_outputs"] == {"regex": r"\d+ apples"}
    for wrong in ("12 pears", "twelve", "12"):
        server = ScriptedServer(lambda _, number, text=wrong: answer(text))  # type: ignore[misc]
        with pytest.raises(EngineError, match="did not enforce a regex"):
            driven(server, one(replace(request, keys=(9,))), store=store)
    # One that ran out of tokens is a beginning of what was wanted.
    server = ScriptedServer(lambda _, number: answer("12 app", "length"))
    assert driven(server, one(replace(request, keys=(9,))), store=store).samples[0].finish == "length"


def test_what_the_server_ignores_is_refused() -> None:
    server = ScriptedServer(by_seed)
    constraint = SampleConstraint("grammar", "x")
    masked = wanted(mask=model_of().constrainer.masks("grammar", "start: /a/"), constraint=constraint)

    async def use(engine: RemoteEngine) -> None:
        for request, words in (
            (wanted(sampling=SamplingParams(0.8, top_k=5)), "ignores `top_k`"),
            (wanted(sampling=SamplingParams(0.8, min_p=0.1)), "ignores `min_p`"),
            (masked, "cannot constrain its output to a grammar"),
            (replace(masked, constraint=None), "cannot constrain its output to a grammar"),
            (wanted(figures=True), "does not report what its tokens were drawn from"),
            (ReadRequest((1, 2), (1,), (3,)), "does not return the logits"),
        ):
            with pytest.raises(EngineError, match=words):
                engine.submit("llm", request)

    driven(server, use)
    assert not server.bodies


def test_calls_of_tools_among_token_ids_are_held_to_their_grammar() -> None:
    """A server that takes tools in chats does not hold token ids to them."""
    server, able = ScriptedServer(by_seed), replace(CAPABILITIES, endpoint="ids", tools=True)
    mask = model_of().constrainer.masks("grammar", "start: /a/")
    masked = wanted(mask=mask, constraint=SampleConstraint("grammar", "x", tools="[]"))

    async def use(engine: RemoteEngine) -> None:
        with pytest.raises(EngineError, match="cannot constrain its output to a grammar"):
            engine.submit("llm", masked)

    driven(server, use, capabilities=able, address=IDS, place=zoo.path("zoo/counting"))
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
        with pytest.raises(EngineError, match="cannot continue an answer"):
            engine.submit("llm", replace(wanted(), prompt=(*ids, *b"It is")))
        with pytest.raises(EngineError, match="takes chats only"):
            engine.submit("llm", wanted())

    driven(server, refused, capabilities=replace(CAPABILITIES, prefill=False, endpoint="chat"))


def test_ids_of_tokens_where_the_server_tells_them() -> None:
    address = IDS
    able = replace(CAPABILITIES, endpoint="ids", token_ids=True, logprobs=True)
    model = model_of(able, address, zoo.path("zoo/counting"))
    eos = min(model.eos)
    ids = [*model.encode(" 3 + 4"), eos]
    told = {"tokens": ["x"] * len(ids), "token_logprobs": [-0.5] * len(ids)}
    server = ScriptedServer(lambda _, number: answer(" 3 + 4", token_ids=ids, logprobs=told))
    request = GenerateRequest(tuple(model.encode("2 + 2")), (1,), SamplingParams(0.8), 50, model.eos)
    (sample,) = driven(server, one(request), capabilities=able, address=address, place=zoo.path("zoo/counting")).samples
    assert sample.tokens == tuple(ids) and sample.finish == "eos" and sample.billed is None
    assert sample.logprobs == (-0.5,) * len(ids) and sample.logprob == pytest.approx(-0.5 * len(ids))
    assert server.bodies[0]["prompt"] == list(request.prompt) and server.bodies[0]["return_token_ids"] is True
    missing = ScriptedServer(lambda _, number: answer(" 3 + 4"))
    with pytest.raises(EngineError, match="has no token ids"):
        driven(missing, one(request), capabilities=able, address=address, place=zoo.path("zoo/counting"))


def test_log_probabilities_are_those_of_the_text_that_was_kept() -> None:
    """However far the server had got, and whether or not it tells of the mark of the end."""

    def of(*pieces: tuple[str, list[tuple[str, float]]], request: GenerateRequest) -> tuple[float, int]:
        events = []
        for number, (text, tokens) in enumerate(pieces):
            told = {"tokens": [token for token, _ in tokens], "token_logprobs": [logprob for _, logprob in tokens]}
            events.append(piece(text, "stop" if number == len(pieces) - 1 else None, logprobs=told))
        server = ScriptedServer(lambda _, number: Pieces(*events).response)
        (sample,) = driven(server, one(request), capabilities=replace(CAPABILITIES, logprobs=True)).samples
        return sample.logprob, sample.size

    tokens = [(" one", -1.0), (";", -2.0), (" two", -4.0)]
    one_by_one = [(text, [(text, logprob)]) for text, logprob in tokens]
    for request, expected in ((stopping(";"), (-3.0, 2)), (stopping("!"), (-7.0, 3))):
        assert of(*one_by_one, request=request) == expected
        assert of((" one; two", tokens), request=request) == expected
    assert of((" one; two", [*tokens, ("", -8.0)]), request=stopping("!"))[0] == -7.0


def test_readings_go_the_same_way(store: CompletionStore) -> None:
    able = replace(CAPABILITIES, endpoint="ids", scores="classify")
    reply = {"data": [{"probs": [0.25]}], "usage": {"prompt_tokens": 3}}
    server = ScriptedServer(lambda _, number: httpx.Response(503) if number == 0 else httpx.Response(200, json=reply))
    first = driven(server, one(ReadRequest((1, 2, 3), (2,), (0,))), capabilities=able, store=store)
    again = driven(server, one(ReadRequest((1, 2, 3), (2,), (0,))), capabilities=able, store=store)
    assert len(server.bodies) == 2 and first.logits == again.logits and len(first.logits) == 1
    assert (first.calls.retries, first.calls.prompt_tokens, again.calls.replayed) == (1, 3, 1)

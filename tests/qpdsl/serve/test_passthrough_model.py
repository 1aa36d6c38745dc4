"""A bare model answers what it is asked, in the forms of OpenAI's API and of vLLM, and refuses the rest."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.models.load import load
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.executor.requests.request import GenerateRequest, LogProbRequest, SamplingParams
from qpdsl.model_location import locate
from qpdsl.serve.completion_request import CompletionRequest, Endpoint, Refusal
from qpdsl.serve.passthrough_model import PassthroughModel
from qpdsl.serve.passthrough_request import sample_keys
from qpdsl.serve.served_model import CompletionChoice, CompletionResponse, Delta

QUESTION = "3 + 4 * 2 = ?"


@cache
def model() -> PagedTextModel:
    return load("zoo/counting", locate("zoo/counting"), "cpu", None)


def engine() -> PagedEngine:
    made = PagedEngine(kv_bytes="16MiB")
    made.add("zoo/counting", model().paged)
    return made


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": QUESTION}], **fields}


def text(prompt: Any = QUESTION, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, **fields}


async def happenings(body: Mapping[str, Any], streams: bool) -> list[Any]:
    """What a model of its own gives for a body; where it is not streamed, the answer alone."""
    own = engine()
    endpoint: Endpoint = "chat" if "messages" in body else "text"
    driver = asyncio.create_task(own.drive())
    try:
        work = PassthroughModel("llm", model(), own, "fp").read(CompletionRequest(endpoint, body, "id"))
        found = [happening async for happening in work.stream()] if streams else [await work.answer()]
        own.check_integrity()
        assert own.busy("zoo/counting") == 0
        return found
    finally:
        driver.cancel()


def answer(body: Mapping[str, Any]) -> CompletionResponse:
    (found,) = asyncio.run(happenings(body, False))
    assert isinstance(found, CompletionResponse)
    return found


def only(body: Mapping[str, Any]) -> CompletionChoice:
    (choice,) = answer(body).choices
    return choice


def refusal(body: Mapping[str, Any]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        asyncio.run(happenings(body, False))
    return caught.value


def drawn(prompt: tuple[int, ...], seed: int, count: int, sampling: SamplingParams, most: int) -> list[tuple[int, ...]]:
    """What the engine draws itself under a seed."""
    own = engine()
    ticket = own.submit(
        "zoo/counting", GenerateRequest(prompt, sample_keys(seed, prompt, count), sampling, most, model().eos)
    )
    while own.has_work:
        own.step()
    return [sample.tokens for sample in ticket.result().samples]


def test_the_samples_of_a_seed_are_the_engines_own_and_those_of_neighbouring_seeds() -> None:
    prompt = tuple(model().encode(QUESTION))
    told = answer(text(list(prompt), seed=5, n=3, temperature=0.9, top_p=0.95, max_tokens=30, return_token_ids=True))
    ids = [tuple(choice.extra["token_ids"]) for choice in told.choices]
    assert ids == drawn(prompt, 5, 3, SamplingParams(0.9, top_p=0.95), 30)
    assert told.choices[0].extra["prompt_token_ids"] == list(prompt)
    second = only(text(list(prompt), seed=6, temperature=0.9, top_p=0.95, max_tokens=30, return_token_ids=True))
    assert tuple(second.extra["token_ids"]) == ids[1]
    assert told.usage.prompt_tokens == len(prompt) and told.usage.completion_tokens == sum(map(len, ids))


def test_requests_without_a_seed_differ() -> None:
    assert len({only(chat(temperature=1.5, max_tokens=30)).text for _ in range(4)}) > 1


@pytest.mark.parametrize(
    "body",
    [
        chat(seed=3, max_tokens=40, n=3, temperature=0.8),
        chat(seed=3, max_tokens=60, stop=["\n\n", "="], n=2, temperature=0.8),
        chat(seed=3, max_tokens=60, stop=["\n\n", "="], n=2, temperature=0.8, include_stop_str_in_output=True),
        text(seed=3, max_tokens=20, echo=True, prompt=["1 + 1", "2 + 2"]),
        text(seed=3, max_tokens=20, logprobs=0, return_token_ids=True),
        text(seed=3, max_tokens=20, logprobs=0, stop=[" ", "."], n=2),
        text(seed=3, max_tokens=20, return_token_ids=True, stop="."),
        text(max_tokens=0, echo=True, logprobs=0),
    ],
)
def test_the_pieces_of_a_stream_are_the_answer(body: dict[str, Any]) -> None:
    whole = answer(body)
    *pieces, last = asyncio.run(happenings(body, True))
    assert (
        isinstance(last, CompletionResponse)
        and last.usage == whole.usage
        and all(isinstance(piece, Delta) for piece in pieces)
    )
    for index, choice in enumerate(whole.choices):
        own = [piece for piece in pieces if piece.index == index]
        assert "".join(piece.text for piece in own) == choice.text == last.choices[index].text
        assert last.choices[index].finish_reason == choice.finish_reason
        assert last.choices[index].extra["stop_reason"] == choice.extra["stop_reason"]
        if body.get("return_token_ids"):
            assert [id for piece in own for id in piece.extra["token_ids"]] == choice.extra["token_ids"]
        if "logprobs" in body:
            assert [piece.logprobs for piece in own] == [choice.logprobs]
        else:
            assert len(own) > 1


def test_a_stop_text_ends_an_answer_and_is_named() -> None:
    plain = only(chat(temperature=0, max_tokens=60))
    stop = plain.text[6:9]
    cut = only(chat(temperature=0, max_tokens=60, stop=["never", stop]))
    assert cut.text == plain.text[: plain.text.index(stop)]
    assert (cut.finish_reason, cut.extra["stop_reason"]) == ("stop", stop)
    kept = only(chat(temperature=0, max_tokens=60, stop=[stop], include_stop_str_in_output=True))
    assert kept.text == plain.text[: plain.text.index(stop) + len(stop)]
    assert plain.extra["stop_reason"] is None


def test_a_bound_ends_an_answer_and_a_full_context_does() -> None:
    short = answer(chat(temperature=0, max_completion_tokens=3))
    assert short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 3
    room = model().max_positions
    ids = (model().encode("1 + 2 ") * room)[: room - 4]
    full = answer(text(ids, max_tokens=30, ignore_eos=True))
    assert full.choices[0].finish_reason == "length" and full.usage.completion_tokens == 4
    assert refusal(text([*ids, *ids])).code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": "(yes|no), [0-9]{3}"}}, r"(yes|no), [0-9]{3}"),
        ({"structured_outputs": {"choice": ["left", 'r"ight']}}, r'left|r"ight'),
        ({"structured_outputs": {"grammar": 'start: "a" "b"~2..3'}}, r"abbb?"),
        ({"structured_outputs": {"json": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3}}}, r"\[.*\]"),
    ],
    ids=["regex", "choice", "grammar", "json"],
)
def test_structured_outputs_hold(fields: dict[str, Any], pattern: str) -> None:
    choice = only(chat(seed=1, temperature=1.0, max_tokens=40, **fields))
    assert re.fullmatch(pattern, choice.text) and choice.finish_reason == "stop"


def test_a_response_format_holds_to_its_schema() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}
    asked = {"type": "json_schema", "json_schema": {"name": "s", "schema": {**schema, "additionalProperties": False}}}
    choice = only(chat(seed=1, max_tokens=40, response_format=asked))
    assert isinstance(json.loads(choice.text)["x"], bool)


def test_log_probabilities_are_those_of_the_tokens() -> None:
    prompt = tuple(model().encode(QUESTION))
    choice = only(text(list(prompt), temperature=0, max_tokens=6, echo=True, logprobs=0, return_token_ids=True))
    assert choice.logprobs is not None
    tokens = (*prompt, *choice.extra["token_ids"])
    own = engine()
    ticket = own.submit("zoo/counting", LogProbRequest(tokens[:1], tokens[1:]))
    while own.has_work:
        own.step()
    expected = ticket.result().logprobs
    told = choice.logprobs["token_logprobs"]
    assert told[0] is None and told[1:] == pytest.approx(expected, abs=1e-5)
    assert "".join(choice.logprobs["tokens"]).startswith(QUESTION)
    ahead = only(text(list(prompt), temperature=0, max_tokens=6, prompt_logprobs=0)).extra["prompt_logprobs"]
    assert [None if entry is None else entry[str(id)]["logprob"] for entry, id in zip(ahead, prompt, strict=True)] == (
        told[: len(prompt)]
    )


def test_named_ids_are_told_of_the_next_token() -> None:
    prompt = tuple(model().encode(QUESTION))
    ids = [7, 3, 9]
    asked = text(list(prompt), max_tokens=1, temperature=0, logprobs=3, logprob_token_ids=ids)
    choice = only({**asked, "return_tokens_as_token_ids": True})
    assert choice.logprobs is not None
    own = engine()
    tickets = [own.submit("zoo/counting", LogProbRequest(prompt, (id,))) for id in ids]
    while own.has_work:
        own.step()
    told = choice.logprobs["top_logprobs"][0]
    assert [told[f"token_id:{id}"] for id in ids] == pytest.approx(
        [ticket.result().logprobs[0] for ticket in tickets], abs=1e-5
    )


def test_the_chat_form_of_log_probabilities() -> None:
    choice = only(chat(temperature=0, max_tokens=4, logprobs=True, top_logprobs=1))
    assert choice.logprobs is not None
    for entry in choice.logprobs["content"]:
        assert entry["top_logprobs"] == [{name: entry[name] for name in ("token", "logprob", "bytes")}]
        assert bytes(entry["bytes"]).decode() == entry["token"] and entry["logprob"] <= 0


def test_a_turn_is_gone_on_with() -> None:
    whole = only(chat(temperature=0, max_tokens=60))
    begun = whole.text[:7]
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": begun}]
    rest = only(
        {
            "messages": turns,
            "temperature": 0,
            "max_tokens": 60,
            "add_generation_prompt": False,
            "continue_final_message": True,
        }
    )
    assert begun + rest.text == whole.text


def test_tokens_and_texts_of_a_prompt() -> None:
    bare = PassthroughModel("llm", model(), engine(), "fp")
    told = bare.tokenize({"model": "llm", "prompt": QUESTION, "return_token_strs": True})
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert bare.detokenize({"model": "llm", "tokens": told["tokens"]})["prompt"].endswith(QUESTION)
    framed = bare.tokenize({"model": "llm", "messages": [{"role": "user", "content": QUESTION}]})
    assert framed["count"] > told["count"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (chat(frequency_penalty=0.5), "`frequency_penalty` is not supported"),
        (chat(guided_regex="a"), "structured_outputs"),
        (chat(temprature=0.5), "temperature"),
        (chat(top_p=0), "`top_p` is above 0"),
        (chat(top_logprobs=3, logprobs=True), "0 or 1"),
        (chat(top_logprobs=1, logprobs=True, temperature=1), "say 0"),
        (chat(structured_outputs={"regex": "("}), "cannot be held to this"),
        (chat(structured_outputs={"json": "{"}), "cannot be held to this"),
        (chat(structured_outputs={"json": True}), "cannot be held to this"),
        (chat(structured_outputs={"regex": "a", "choice": ["b"]}), "has one of"),
        (chat(response_format={"type": "xml"}), "`response_format` has the type"),
        (chat(response_format={"type": "json_object", "schema": {}}), "has the unknown field `schema`"),
        (chat(response_format={"type": "json_schema", "json_schema": {"schema": {}, "strct": True}}), "`strict`"),
        (chat(response_format={"type": "json_schema", "json_schema": {"schema": True}}), "is an object"),
        (text([1, 10**6]), "not in the vocabulary"),
        (text([]), "`prompt` is a text"),
        (text(max_tokens=0), "at least 1"),
        (text(prompt_logprobs=5), "`prompt_logprobs`"),
        (chat(continue_final_message=True, add_generation_prompt=False), "goes on with a turn of the assistant"),
        (text(logprob_token_ids=[1], logprobs=1, max_tokens=3), "`max_tokens` 1"),
    ],
)
def test_what_is_not_honoured_is_refused(body: dict[str, Any], words: str) -> None:
    refused = refusal(body)
    assert words in refused.message and refused.status == 400


@pytest.mark.parametrize("field", ["skip_special_tokens", "prompt", "stream", "n"])
def test_what_the_text_of_tokens_does_not_honour_is_refused(field: str) -> None:
    bare = PassthroughModel("llm", model(), engine(), "fp")
    with pytest.raises(Refusal, match=f"`{field}`"):
        bare.detokenize({"model": "llm", "tokens": [5], field: False if field == "skip_special_tokens" else 2})


def test_a_stream_that_nobody_reads_to_its_end_is_given_up() -> None:
    async def leave() -> None:
        own = engine()
        driver = asyncio.create_task(own.drive())
        bare = PassthroughModel("llm", model(), own, "fp")
        stream = bare.read(CompletionRequest("chat", chat(max_tokens=400, ignore_eos=True), "id")).stream()
        await anext(stream)
        assert own.busy("zoo/counting") == 1
        await stream.aclose()  # type: ignore[attr-defined]
        assert own.busy("zoo/counting") == 0
        own.check_integrity()
        driver.cancel()

    asyncio.run(leave())

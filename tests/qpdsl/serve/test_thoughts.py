"""Thoughts in what is asked and answered: of programs, of bare models, and of another qpdsl that reads these."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from qpdsl.executor.remote.probe.known_servers import known_or_probed
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.runtime.instance.candidates import Row
from qpdsl.session.planning import Planning, reads_of
from qpdsl.session.programs import load_program
from qpdsl.session.session import Session
from qpdsl.session.settings import SessionSettings
from qpdsl.session.surroundings import Surroundings
from tests.support.serving.replies import error
from tests.support.serving.running_server import Running, events, running
from tests.support.user_cache import own_cache

ID = "zoo/counting-thinker"
QUESTION = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
HARD = "Ann has 7 pens. She buys 2 boxes with 6 pens in each box. How many pens does Ann have?"
PROGRAMS = f"""\
model llm = "{ID}"

program bounded(problem: text, think: int = 64) -> text {{
  chat user=problem
  generate llm temperature=0 think=think max_tokens=64
}}

program minded(problem: text, think: text = "on") -> text {{
  chat user=problem
  generate llm temperature=0 think=think max_tokens=64
}}

program as_it_is(problem: text) -> text {{
  chat user=problem
  generate llm temperature=0 max_tokens=64
}}

program voted(problem: text) -> text {{
  chat user=problem
  generate llm n=3 temperature=0.8 think=7 max_tokens=64
  extract answer = /(\\d+)/
  vote answer
}}

program talk(turns: messages) -> text {{
  chat messages=turns
  generate llm temperature=0 think=off max_tokens=64
}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """What is found out about it is kept for all tests, in a cache of their own."""
    file = tmp_path_factory.mktemp("served") / "think.qp"
    file.write_text(PROGRAMS)
    with pytest.MonkeyPatch.context() as patch, running([str(file)], expose=[f"llm={ID}"]) as running_server:
        own_cache(tmp_path_factory.mktemp("cache"), patch)
        yield running_server


def said(response: httpx.Response) -> tuple[str | None, str]:
    """The thought and the text of an answer."""
    assert response.status_code == 200, response.text
    message = response.json()["choices"][0]["message"]
    assert message.get("reasoning") == message.get("reasoning_content")
    return message.get("reasoning_content"), message["content"]


def counted(response: httpx.Response) -> tuple[int, int]:
    details = response.json()["usage"]["completion_tokens_details"]
    return details["reasoning_tokens"], details["answer_tokens"]


def streamed(response: httpx.Response) -> tuple[str, str, list[dict[str, Any]]]:
    """The thought and the text of a stream, and its chunks."""
    *chunks, done = events(response)
    found = [json.loads(chunk) for chunk in chunks]
    deltas = [choice["delta"] for chunk in found for choice in chunk["choices"]]
    assert done == "[DONE]" and all(one.get("reasoning") == one.get("reasoning_content") for one in deltas)
    parts = ("".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning", "content"))
    return *parts, found  # type: ignore[return-value]


@pytest.mark.parametrize("model", ["bounded", "llm"])
def test_a_bound_a_switch_and_a_stream(server: Running, model: str) -> None:
    free, _ = said(server.chat(model, HARD, temperature=0))
    answer = server.chat(model, HARD, temperature=0, thinking_token_budget=7)
    thought, text = said(answer)
    assert free and thought and text and free.startswith(thought) and free != thought
    assert counted(answer)[0] == 7 and sum(counted(answer)) == answer.json()["usage"]["completion_tokens"]
    whole = streamed(server.chat(model, HARD, temperature=0, thinking_token_budget=7, stream=True))
    assert whole[:2] == (thought, text) and len(whole[2]) > 6
    for field in (
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
        {"thinking_token_budget": 0},
    ):
        off = server.chat(model, HARD, temperature=0, **field)
        assert said(off)[0] is None and said(off)[1] and counted(off)[0] == 0


def test_an_effort_is_the_programs_word(server: Running) -> None:
    assert said(server.chat("minded", QUESTION, reasoning_effort="none"))[0] is None
    assert said(server.chat("minded", QUESTION, chat_template_kwargs={"enable_thinking": True}))[0]
    answer = server.chat("minded", QUESTION, reasoning_effort="high")
    assert "has no effort `high`" in error(answer, 422)["message"]


@pytest.mark.parametrize(
    ("model", "fields", "words"),
    [
        ("as_it_is", {"reasoning_effort": "low"}, "`as_it_is` sets how its models think"),
        ("as_it_is", {"thinking_token_budget": 9}, "give the program a parameter `think`"),
        ("minded", {"thinking_token_budget": 9}, "`think` of `minded` is text, not a number of tokens"),
        ("bounded", {"reasoning_effort": "low"}, "`think` of `bounded` is int, and has no value for this"),
        ("bounded", {"thinking_token_budget": 9, "parameters": {"think": 8}}, "`think` is given twice"),
        ("bounded", {"thinking_token_budget": -1}, "must be at least 0"),
        ("bounded", {"thinking_token_budget": 0, "reasoning_effort": "high"}, "do not say the same of thinking"),
        ("bounded", {"thinking_token_budget": 0, "chat_template_kwargs": {"thinking": True}}, "do not say the same"),
        ("llm", {"reasoning_effort": "low"}, "`llm` has no effort `low`"),
        ("llm", {"chat_template_kwargs": {"enable_thinkin": True}}, "did you mean `enable_thinking`?"),
        ("llm", {"chat_template_kwargs": {"enable_thinking": 1}}, "must be true or false"),
        ("llm", {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, "not say the same"),
    ],
)
def test_what_is_asked_for_and_cannot_be_had_is_refused(
    server: Running, model: str, fields: dict[str, Any], words: str
) -> None:
    assert words in error(server.chat(model, QUESTION, **fields))["message"]


def test_a_model_that_does_not_think_takes_what_asks_for_nothing() -> None:
    with running([], expose=["plain=zoo/counting"]) as server:
        assert said(server.chat("plain", QUESTION, reasoning_effort="none", temperature=0))[0] is None
        answer = server.chat("plain", QUESTION, thinking_token_budget=64)
        assert "`plain` is not known to think before it answers" in error(answer)["message"]


def test_an_answer_that_won_has_its_thought(server: Running) -> None:
    answer = server.chat("voted", QUESTION, seed=1)
    thought, text = said(answer)
    assert thought and text
    reasoning, own = counted(answer)
    assert reasoning > 2 * 7 and 0 < own < 64


def test_stops_and_constraints_are_the_answers(server: Running) -> None:
    thought, text = said(server.chat("llm", HARD, temperature=0, thinking_token_budget=18, stop=["="]))
    assert thought and "=" in thought and text and "=" not in text
    held = {"structured_outputs": {"regex": "[0-9]{2}"}, "temperature": 0, "thinking_token_budget": 18}
    again, number = said(server.chat("llm", HARD, **held))
    assert again == thought and len(number) == 2 and number.isdigit()


def test_a_bound_on_all_of_it_can_leave_no_answer(server: Running) -> None:
    answer = server.chat("llm", HARD, temperature=0, max_tokens=6)
    thought, text = said(answer)
    assert thought and text == "" and answer.json()["choices"][0]["finish_reason"] == "length"


def test_a_stream_tells_of_the_tokens_of_thoughts_as_it_goes(server: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    fields = {"temperature": 0, "thinking_token_budget": 7, "stream": True, "return_token_ids": True}
    _, _, chunks = streamed(server.chat("llm", HARD, stream_options=options, **fields))
    counts = [chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] for chunk in chunks if chunk["usage"]]
    ids = [id for chunk in chunks for choice in chunk["choices"] for id in choice.get("token_ids", ())]
    assert counts == sorted(counts) and counts[-1] == 7 and chunks[-1]["usage"]["completion_tokens"] == len(ids)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_come_back_with_a_conversation(server: Running, field: str) -> None:
    turns = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "12", field: "3 * 4 = 12."},
        {"role": "user", "content": HARD},
    ]
    for model in ("talk", "llm"):
        answer = server.post("chat/completions", model=model, messages=turns, temperature=0)
        assert answer.status_code == 200, answer.text
    without = [turns[0], {"role": "assistant", "content": "12"}, turns[2]]
    tokens = [
        server.client.post(f"{server.root}/tokenize", json={"model": "llm", "messages": one}).json()["tokens"]
        for one in (turns, without)
    ]
    # Its template drops thoughts before the last question.
    assert tokens[0] == tokens[1]


def test_a_text_completion_has_the_answer_alone(server: Running) -> None:
    fields = {"model": "bounded", "prompt": HARD, "thinking_token_budget": 7, "seed": 1}
    whole = server.post("completions", **fields).json()["choices"][0]
    stream = events(server.post("completions", stream=True, **fields))[:-1]
    pieces = [choice["text"] for chunk in stream for choice in json.loads(chunk)["choices"]]
    assert "".join(pieces) == whole["text"] and "reasoning" not in str(whole) and all(pieces[:-1])


def test_log_probabilities_are_those_of_the_answer(server: Running) -> None:
    answer = server.chat("bounded", HARD, thinking_token_budget=7, logprobs=True)
    told = answer.json()["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in told) == said(answer)[1]
    assert all(token["logprob"] <= 0 for token in told) and max(token["logprob"] for token in told) > -0.5


# As the server of another qpdsl.

NAMES = ("thought", "text", "thought_tokens", "finish")


def rows(model: str, program: str, seed: int = 0, completions: Path | None = None) -> list[list[Any]]:
    """The columns of the rows that a program ends with."""
    logical = load_program(None, program, None, Surroundings(models={"llm": model}))
    session = Session(completions=completions)
    plan = Planning().optimized(logical, reads_of(logical, text=True), SessionSettings()).plan
    session.load(plan)

    async def run() -> tuple[Row, ...]:
        async with session.running():
            result = await session.run(plan, {"q": HARD}, seed)
            assert result.error is None, result.error
            return tuple(result.rows)

    return [[row.columns[name] for name in NAMES] for row in asyncio.run(run())]


@pytest.mark.parametrize("dialect", ["vllm", "openai"])
def test_the_probe_sees_how_the_model_thinks(server: Running, dialect: str) -> None:
    address = Address.of(f"{dialect}:{server.url}#llm")
    assert address is not None
    seen = asyncio.run(known_or_probed(address, None, again=True)).thinking
    assert seen is not None and (seen.field, seen.default, seen.counted) == ("reasoning_content", "on", True)
    assert seen.bound == "thinking_token_budget" and seen.switches.keys() == {"on", "off"} and seen.returned


@pytest.mark.parametrize(
    "model", ["vllm:{url}#llm", "openai:{url}#llm", "vllm:{url}#llm tokenizer=zoo/counting-thinker"]
)
@pytest.mark.parametrize(
    "stage",
    ["generate llm temperature=0 think=7", "generate llm temperature=0", "generate llm temperature=0 think=off"],
)
def test_a_greedy_program_thinks_and_answers_as_here(server: Running, model: str, stage: str) -> None:
    program = f"chat user=q | {stage}"
    assert rows(model.format(url=server.url), program) == rows(ID, program)


def test_samples_are_drawn_again_by_their_seeds(server: Running, tmp_path: Path) -> None:
    program = "chat user=q | generate llm n=3 temperature=1.5 think=9 max_tokens=24"
    model = f"vllm:{server.url}#llm"
    first = rows(model, program, completions=tmp_path / "a.sqlite")
    assert first == rows(model, program, completions=tmp_path / "b.sqlite") and len({row[0] for row in first}) > 1

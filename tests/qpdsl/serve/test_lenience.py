"""A lenient server answers requests without what its programs have no place for, and says in a header what that was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="serving needs qpdsl[serve]")
pytest.importorskip("uvicorn", reason="serving needs qpdsl[serve]")
pytest.importorskip("prometheus_client", reason="serving needs qpdsl[serve]")

from qpdsl.serve.lenience import HEADER, Lenience
from tests.support.serving.replies import content, error
from tests.support.serving.running_server import Running, events, running
from tests.support.serving.served_programs import QUESTION

USER = {"role": "user", "content": QUESTION}
SYSTEM = {"role": "system", "content": "Be kind."}
EARLIER = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello!"}]
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def lenient(programs: Path) -> Iterator[Running]:
    targets = ["greedy", "self_consistency", "constrained_json", str(programs)]
    with running(targets, expose=["llm"], lenience=Lenience(everything=True)) as server:
        yield server


@pytest.mark.parametrize(
    ("model", "body", "left_out"),
    [
        ("greedy", {"messages": [USER]}, None),
        ("greedy", {"messages": [USER], "temperature": 0, "tools": [], "max_tokens": 99}, None),
        ("greedy", {"messages": [USER], "temperature": 0.7, "tools": TOOLS, "tool_choice": "required"},
         "temperature, tools, tool_choice"),
        ("self_consistency", {"messages": [SYSTEM, USER], "temperature": 0.7, "top_p": 0.9}, "top_p"),
        ("self_consistency", {"messages": [USER], "logprobs": True}, "logprobs"),
        ("greedy", {"messages": [SYSTEM, *EARLIER, SYSTEM, USER]}, "messages[1:4]"),
        ("cut_short", {"messages": [SYSTEM, USER]}, "messages[0]"),
        ("cut_short", {"messages": [SYSTEM, USER, EARLIER[1]], "x\r\n": 1}, '"x\\r\\n", messages[0], messages[2]'),
        ("constrained_json", {"messages": [USER], "stop": "\n"}, "stop"),
        ("greedy", {"messages": [USER], "response_format": {"type": "json_object"}}, "response_format"),
        ("llm", {"messages": [*EARLIER, USER], "frequency_penalty": 1, "temperature": 0.5, "seed": 1},
         "frequency_penalty"),
    ],
)  # fmt: skip
def test_what_has_no_place_is_left_out_and_told(
    lenient: Running, model: str, body: dict[str, Any], left_out: str | None
) -> None:
    asked = {"model": model, "seed": 0, **body}
    answered = lenient.post("chat/completions", **asked)
    assert content(answered) and answered.headers.get(HEADER) == left_out
    streamed = lenient.post("chat/completions", **asked, stream=True)
    assert events(streamed)[-1] == "[DONE]" and streamed.headers.get(HEADER) == left_out


def test_the_answer_is_that_of_the_rest(lenient: Running) -> None:
    alone = lenient.chat("say_it", QUESTION, seed=3)
    among = lenient.post("chat/completions", model="say_it", messages=[SYSTEM, *EARLIER, USER], seed=3, top_k=5)
    assert content(alone) == content(among) and among.headers[HEADER] == "top_k, messages[0:3]"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [USER], "max_tokens": "many"}, "max_tokens"),
        ({"messages": [USER], "parameters": {"wdth": 2}}, "parameters"),
        ({"messages": [EARLIER[1]]}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages"),
        ({"messages": [USER], "temperature": -1}, "temperature"),
        ({"messages": [USER], "top_p": 9}, "top_p"),
        ({"messages": [USER], "frequency_penalty": "much"}, "frequency_penalty"),
        ({"messages": [USER], "prompt": QUESTION}, "prompt"),
    ],
)
def test_what_is_wrong_is_refused_all_the_same(lenient: Running, body: dict[str, Any], param: str) -> None:
    assert error(lenient.post("chat/completions", model="greedy", **body))["param"] == param


def test_one_field_that_is_ignored_leaves_the_others_refused(programs: Path) -> None:
    with running(["greedy", str(programs)], fixed=["system=Be kind."], lenience=Lenience(frozenset({"top_p"}))) as one:
        taken = one.chat("greedy", QUESTION, top_p=0.5)
        assert content(taken) and taken.headers[HEADER] == "top_p"
        assert error(one.chat("greedy", QUESTION, top_p=0.5, top_k=7))["param"] == "top_k"
        # What the server has set has no place in a conversation any more.
        turned = error(one.post("chat/completions", model="greedy", messages=[SYSTEM, USER]))
        assert "no place for a system turn" in turned["message"] and "`--lenient`" in turned["message"]
        for field, value in (("frequency_penalty", 0.5), ("store", True)):
            assert "`--lenient` leaves it out" in error(one.chat("greedy", QUESTION, **{field: value}))["message"]


def test_a_long_list_of_what_was_left_out_is_cut(lenient: Running) -> None:
    answered = lenient.chat("greedy", QUESTION, **{f"field_{number}": 1 for number in range(5000)})
    assert content(answered) and len(answered.headers[HEADER]) < 1100

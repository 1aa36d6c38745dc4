"""The turns that a chat request has: thoughts that a client sends back come with them."""

from __future__ import annotations

import pytest

from qpdsl.planner.plan.logical import Parameter
from qpdsl.serve.completion_request import Refusal
from qpdsl.serve.conversation import read_messages, unreachable


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_an_assistants_turn_has_its_thought(name: str) -> None:
    asked = {"role": "user", "content": "How many?", name: None}
    answered = {"role": "assistant", "content": "12", name: "3 * 4"}
    assert read_messages([asked, answered, {"role": "assistant", "content": "12", name: ""}]) == (
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "12", "reasoning_content": "3 * 4"},
        {"role": "assistant", "content": "12"},
    )


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "user", "reasoning": "x"},
        {"role": "assistant", "reasoning": ["x"]},
        {"role": "assistant", "reasoning": 0},
    ],
)
def test_a_thought_is_a_text_of_the_assistants(turn: dict[str, object]) -> None:
    with pytest.raises(Refusal, match=r"`messages\[0\]` has a thought, which is a text of the assistant's"):
        read_messages([{"content": "x", **turn}])


def test_two_thoughts_of_one_turn_are_refused() -> None:
    turn = {"role": "assistant", "content": "12", "reasoning_content": "3 * 4", "reasoning": "10 + 2"}
    with pytest.raises(Refusal, match=r"`reasoning_content` and `reasoning` of .* are not the same"):
        read_messages([turn])
    assert read_messages([{**turn, "reasoning": "3 * 4"}])[0]["reasoning_content"] == "3 * 4"


def test_what_a_part_has_besides_its_text_is_refused() -> None:
    part = {"type": "text", "text": "Wie viele?", "cache_control": {"type": "ephemeral"}, "annotations": []}
    assert read_messages([{"role": "user", "content": [part]}]) == ({"role": "user", "content": "Wie viele?"},)
    with pytest.raises(Refusal, match="a part of `messages\\[0\\]` has the unknown field `image_url`"):
        read_messages([{"role": "user", "content": [{**part, "image_url": "x"}]}])


def test_calls_and_what_came_of_them_are_read_as_records() -> None:
    function = {"name": "add", "arguments": '{"a": 7}'}
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    came = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "12"}]}
    asked, call, answer = read_messages(
        [{"role": "user", "content": "7?"}, {**called, "reasoning": "so"}, came], tools=True
    )
    assert call["tool_calls"][0]["function"]["arguments"] == {"a": 7} and call["reasoning_content"] == "so"
    assert call["content"] == "" and answer == {"name": "add", "role": "tool", "content": "12", "tool_call_id": "c1"}
    assert asked == {"role": "user", "content": "7?"}


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        ({"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}, "has a call without a `name`"),
        ({"role": "assistant", "content": "", "tool_calls": "add"}, "has a call without a `name`"),
        ({"role": "assistant", "content": 7, "tool_calls": []}, "has no text as its content"),
        ({"role": "tool", "content": "x", "tool_call_id": 7}, "are texts"),
        ({"role": "tool", "content": None}, "has no text as its content"),
        ({"role": "tool", "content": "x", "tool_name": "add"}, "the unknown field `tool_name`"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "has `tool_calls`, which is not supported here"),
    ],
)
def test_turns_for_tools_that_say_nothing_are_refused(turn: dict[str, object], words: str) -> None:
    with pytest.raises(Refusal, match=words):
        read_messages([turn], tools=True)


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ({"a": "int", "b": "int"}, "`p` takes no text, so the user's turn has no place in it"),
        ({"subject": "text", "body": "text"}, "`p` takes `subject` and `body`, of which none is the user's turn"),
        ({"subject": "text", "q": "text"}, None),
        ({"history": "messages"}, None),
    ],
)
def test_a_program_that_no_conversation_reaches(types: dict[str, str], words: str | None) -> None:
    why = unreachable("p", [Parameter(name, type, None) for name, type in types.items()])
    assert why is None if words is None else why is not None and why.startswith(words)

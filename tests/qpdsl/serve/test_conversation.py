"""The turns that a chat request has: thoughts that a client sends back come with them."""

from __future__ import annotations

import pytest

from qpdsl.serve.completion_request import Refusal
from qpdsl.serve.conversation import read_messages


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_an_assistants_turn_has_its_thought(name: str) -> None:
    asked = {"role": "user", "content": "How many?", name: None}
    answered = {"role": "assistant", "content": "12", name: "3 * 4"}
    assert read_messages([asked, answered, {"role": "assistant", "content": "12", name: ""}]) == (
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "12", "reasoning_content": "3 * 4"},
        {"role": "assistant", "content": "12"},
    )


@pytest.mark.parametrize("turn", [{"role": "user", "reasoning": "x"}, {"role": "assistant", "reasoning": ["x"]}])
def test_a_thought_is_a_text_of_the_assistants(turn: dict[str, object]) -> None:
    with pytest.raises(Refusal, match=r"`messages\[0\]` has a thought, which is a text of the assistant's"):
        read_messages([{"content": "x", **turn}])

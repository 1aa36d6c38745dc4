"""Programs that end in a call of a tool, which the client makes, and conversations that say what came of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qpdsl import zoo
from tests.support.paths import ROOT
from tests.support.serving.running_server import Running, events, running

PROGRAM = """
model llm = "zoo/counting"

schema add {
  a: int(0..99)
  b: int(0..99)
}

program acting(history: messages) {
  chat messages=history
  generate llm as call(add) temperature=0 into call
  return call
}
"""
SEVERAL = PROGRAM.replace("acting", "several").replace("add) temperature=0", "add, calls=3) temperature=1.5")
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
ASKED = {"role": "user", "content": "Bo has 2 pens."}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("served")
    for name, program in {"acting": PROGRAM, "several": SEVERAL}.items():
        (folder / f"{name}.qp").write_text(program, "utf-8")
    with running([str(folder / "acting.qp"), str(folder / "several.qp")]) as server:
        yield server


def test_the_call_that_a_program_ends_in_is_the_clients(server: Running) -> None:
    name = "acting"

    def ask(*turns: Any, **more: Any) -> Any:
        return server.post("chat/completions", model=name, messages=list(turns), **more)

    choice = ask(ASKED, tools=TOOLS).json()["choices"][0]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls" and message["content"] is None
    (call,) = message["tool_calls"]
    assert call["type"] == "function" and call["function"]["name"] == "add"
    assert set(json.loads(call["function"]["arguments"])) == {"a", "b"}
    came = {"role": "tool", "tool_call_id": call["id"], "content": "5"}
    again = ask(ASKED, message, came, tools=TOOLS).json()["choices"][0]
    assert again["finish_reason"] == "tool_calls"
    assert json.loads(ask(ASKED).json()["choices"][0]["message"]["content"])["name"] == "add"
    others = [{"type": "function", "function": {"name": "sub"}}]
    assert "which `tools` has not" in ask(ASKED, tools=others).json()["error"]["message"]
    assert ask(ASKED, tools=TOOLS, tool_choice="none").json()["choices"][0]["finish_reason"] == "stop"


def test_all_calls_of_a_message_are_the_clients(server: Running) -> None:
    given = {"tools": TOOLS, "seed": 1, "n": 4}
    choices = server.chat("several", "Bo has 2 pens.", **given).json()["choices"]
    assert {choice["finish_reason"] for choice in choices} == {"tool_calls"}
    made = [choice["message"]["tool_calls"] for choice in choices]
    assert max(map(len, made)) > 1 and len({call["id"] for calls in made for call in calls}) == sum(map(len, made))
    came = [{"role": "tool", "tool_call_id": call["id"], "content": "5"} for call in made[0]]
    turns = [ASKED, choices[0]["message"], *came]
    again = server.post("chat/completions", model="several", messages=turns, tools=TOOLS)
    assert again.status_code == 200


def test_a_call_is_streamed_whole_when_it_is_known(server: Running) -> None:
    name = "acting"
    whole = server.chat(name, "Bo has 2 pens.", tools=TOOLS, seed=4).json()["choices"][0]
    *told, done = events(server.chat(name, "Bo has 2 pens.", tools=TOOLS, seed=4, stream=True))
    begun, called, ended = (json.loads(chunk)["choices"][0] for chunk in told)
    assert begun["delta"] == {"role": "assistant", "content": None} and done == "[DONE]"
    assert called["delta"]["tool_calls"] == [{"index": 0, **whole["message"]["tool_calls"][0]}]
    assert ended["delta"] == {} and ended["finish_reason"] == "tool_calls"


def test_a_program_gives_back_a_call_or_a_text_and_a_text_before_a_call_comes_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(zoo.path("zoo/counting"), folder)
    template = ROOT / "tests" / "executor" / "text" / "tool_templates" / "named.jinja"
    shutil.copy(template, folder / "chat_template.jinja")
    bias = '[{token: "<|pad|>", bias: 9.0}]'
    written = f"generate llm temperature=1.5 max_tokens=60 logit_bias={bias} as call(add, text)"
    text = PROGRAM.replace("zoo/counting", str(folder)).replace("generate llm as call(add) temperature=0", written)
    (tmp_path / "acting.qp").write_text(text.replace("return call", "return call else text"), "utf-8")
    with running([str(tmp_path / "acting.qp")]) as server:
        name = server.client.get(f"{server.url}/models").json()["data"][0]["id"]
        asked = {"tools": TOOLS, "seed": 3, "n": 8}
        choices = server.chat(name, "Bo has 2 pens.", **asked).json()["choices"]
        *told, _ = events(server.chat(name, "Bo has 2 pens.", **asked, stream=True))
    streamed = [json.loads(chunk)["choices"][0] for chunk in told]
    for choice in choices:
        own = [one["delta"] for one in streamed if one["index"] == choice["index"]]
        message, called = choice["message"], [call for delta in own for call in delta.get("tool_calls", ())]
        assert "".join(delta.get("content") or "" for delta in own) == (message["content"] or "")
        assert called == [{"index": 0, **call} for call in message.get("tool_calls", ())]
        assert (choice["finish_reason"] == "tool_calls") == bool(called)
        assert message["content"] or called
    calling = [choice["message"] for choice in choices if "tool_calls" in choice["message"]]
    assert 0 < len(calling) < len(choices)
    assert any(message["content"] and "[ARGS]" not in message["content"] for message in calling)

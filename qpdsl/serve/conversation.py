"""The conversation of a chat request, and which parameters of a program it becomes.

A parameter of the type `messages` gets the whole conversation, or all turns before the last one where a text parameter
needs that. Without one, the question goes to the parameter that is named `question`, `prompt`, `problem` or `q`, or to
the only text parameter without a default; it is the one user turn. A system turn goes to the text parameter `system`.
A turn that has no place is refused, unless the server is told to leave it out: an answer without it would answer
something else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from qpdsl.errors import unknown
from qpdsl.grammar.suggest import listed
from qpdsl.planner.plan.logical import Parameter
from qpdsl.serve.completion_request import NoPlace, Refusal

QUESTIONS = ("question", "prompt", "problem", "q")
SYSTEM = "system"
MAX_TURNS = 4096
ROLES = ("system", "developer", "user", "assistant")
# What a client may send back with a turn that it got: nothing is said by these where they are empty.
_EMPTY = ("tool_calls", "function_call", "refusal", "audio", "annotations", "name")
# What turns have for tools, by their role.
_FOR_TOOLS: Mapping[str, tuple[str, ...]] = {"assistant": ("tool_calls",), "tool": ("tool_call_id", "name")}
# Of a part; what a cache is told says nothing of the answer.
_OF_PARTS = ("type", "text", "cache_control")
# What the assistant thought before it answered.
THOUGHTS = ("reasoning_content", "reasoning")
Turn = Mapping[str, Any]


def read_messages(value: Any, *, tools: bool = False) -> tuple[Turn, ...]:
    """The turns of `messages`, each `{"role", "content"}`; text parts are joined. Raises Refusal.

    A turn of the assistant has a `reasoning_content` too where a thought is given with it.

    With `tools` there may be calls of tools, and turns that say what came of them: each has the `name` of the tool too,
    where the call that it answers says it.

    The role `developer`, OpenAI's newer name, becomes `system`.
    """
    if not isinstance(value, list) or not value:
        raise Refusal("`messages` is a list with at least one turn", "messages")
    if len(value) > MAX_TURNS:
        raise Refusal(f"`messages` has {len(value):,} turns, and up to {MAX_TURNS:,} are taken", "messages")
    turns = tuple(_turn(f"messages[{place}]", turn, tools=tools) for place, turn in enumerate(value))
    calls = [call for turn in turns for call in turn.get("tool_calls", ())]
    names = {call["id"]: call["function"]["name"] for call in calls if call["id"]}
    return tuple(_named(turn, names) for turn in turns)


def read_prompt(value: Any) -> str:
    """The text of `prompt`. Raises Refusal."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        raise Refusal("`prompt` is one text here; token ids and several prompts are not taken", "prompt")
    return value


def question_parameter(params: Sequence[Parameter]) -> Parameter | None:
    """The parameter that a user turn becomes; None where there is none, or no one of several."""
    texts = [param for param in params if param.type == "text"]
    for name in QUESTIONS:
        for param in texts:
            if param.name == name:
                return param
    needed = [param for param in texts if _required(param) and param.name != SYSTEM]
    return needed[0] if len(needed) == 1 else None


def places(params: Sequence[Parameter]) -> dict[str, str]:
    """Which parameters a conversation fills: `messages`, all turns; `user`, the last or only one; `system`."""
    whole = [param for param in params if param.type == "messages"]
    question = question_parameter(params)
    if len(whole) == 1:
        user = {} if question is None or not _required(question) else {"user": question.name}
        return {"messages": whole[0].name, **user}
    user = {} if question is None else {"user": question.name}
    instructed = any(param.name == SYSTEM and param.type == "text" for param in params)
    return {**user, **({"system": SYSTEM} if instructed else {})}


def unreachable(program: str, params: Sequence[Parameter]) -> str | None:
    """Why no conversation reaches a program whose requests may set these parameters; None where one does."""
    if places(params).keys() & {"messages", "user"}:
        return None
    texts = [param.name for param in params if param.type == "text" and param.name != SYSTEM]
    if not texts:
        return f"`{program}` takes no text, so the user's turn has no place in it: give it a parameter `problem: text`"
    named = listed(QUESTIONS, last="or")
    return f"`{program}` takes {listed(texts, last='and')}, of which none is the user's turn: call that one {named}"


def arguments_of(program: str, params: Sequence[Parameter], turns: Sequence[Turn]) -> dict[str, Any]:
    """The values, as JSON has them, of the parameters that a conversation fills.

    Raises Refusal, as NoPlace where it has turns without a place and others that have one.
    """
    place = places(params)
    if "messages" in place:
        if "user" not in place:
            return {place["messages"]: [dict(turn) for turn in turns]}
        if turns[-1]["role"] != "user":
            raise Refusal(f"the last turn is the user's, which is `{place['user']}` of `{program}`", "messages")
        return {place["messages"]: [dict(turn) for turn in turns[:-1]], place["user"]: turns[-1]["content"]}
    systems = [number for number, turn in enumerate(turns) if turn["role"] == "system"]
    others = [number for number, turn in enumerate(turns) if turn["role"] != "system"]
    users = [number for number in others if turns[number]["role"] == "user"]
    kept = {*systems[: int("system" in place)], *users[-1:]}
    if others and (why := unreachable(program, params)):
        raise Refusal(why, "messages")
    if len(kept) < len(turns):
        help = f"write a parameter of the type `messages` into `{program}`, which gets the whole conversation"
        if systems and "system" not in place:
            message = f"`{program}` has no place for a system turn: leave it out, or {help}"
        elif len(systems) > 1:
            message = f"`{program}` takes one system turn, not {len(systems)}: {help}"
        else:
            message = f"`{program}` takes one user turn, and this conversation has more: {help}"
        if others and not users:
            raise Refusal(message, "messages")
        raise NoPlace(message, "messages", code=None, turns={*range(len(turns))} - kept)
    return {place[turn["role"]]: turn["content"] for turn in turns}


def _required(param: Parameter) -> bool:
    return param.default is None and not param.optional


def _named(turn: Turn, names: Mapping[str, str]) -> Turn:
    """A turn with the name of the tool that it answers for, by the id of the call."""
    name = names.get(turn.get("tool_call_id", ""))
    return turn if name is None else {"name": name, **turn}


def _turn(where: str, turn: Any, *, tools: bool) -> Turn:
    if not isinstance(turn, dict):
        raise Refusal(f'`{where}` is not an object with "role" and "content"', "messages")
    role = turn.get("role")
    own = _FOR_TOOLS.get(str(role), ()) if tools else ()
    given = {name: turn[name] for name in own if turn.get(name) not in (None, "", [])}
    if role not in ROLES and not (tools and role == "tool"):
        if role in ("tool", "function"):
            raise Refusal(f"`{where}` is a turn of a tool, and tools are not supported here", "messages")
        lead = f"`{where}` has the unknown role" if isinstance(role, str) else f"`{where}` has no role"
        raise Refusal(unknown(role, ROLES, lead) if isinstance(role, str) else lead, "messages")
    for name, value in turn.items():
        if name in ("role", "content", *THOUGHTS, *own) or (name == "type" and value in ("text", "message")):
            continue
        if name not in _EMPTY:
            raise Refusal(unknown(name, ("role", "content"), f"`{where}` has the unknown field"), "messages")
        if value:
            raise Refusal(f"`{where}` has `{name}`, which is not supported here", "messages")
    content = turn.get("content")
    if content is None and "tool_calls" in given:
        content = ""
    if "tool_calls" in given:
        given["tool_calls"] = _calls(where, given["tool_calls"])
    if any(not isinstance(given.get(name, ""), str) for name in _FOR_TOOLS["tool"]):
        raise Refusal(f"`tool_call_id` and `name` of `{where}` are texts", "messages")
    read = {"role": "system" if role == "developer" else str(role), "content": _content(where, content), **given}
    thoughts = [turn[name] for name in THOUGHTS if turn.get(name) not in (None, "")]
    if thoughts and (role != "assistant" or not all(isinstance(thought, str) for thought in thoughts)):
        raise Refusal(f"`{where}` has a thought, which is a text of the assistant's", "messages")
    if len(set(thoughts)) > 1:
        names = " and ".join(f"`{name}`" for name in THOUGHTS)
        raise Refusal(f"{names} of `{where}` are not the same", "messages")
    thought = next(iter(thoughts), "")
    return {**read, "reasoning_content": thought} if thought else read


def _calls(where: str, listed: Any) -> list[dict[str, Any]]:
    """The calls of a turn, with their arguments as records. Raises Refusal."""
    calls = []
    for call in listed if isinstance(listed, list) else [None]:
        function = call.get("function") if isinstance(call, dict) else None
        name, given = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else (None, None)
        try:
            arguments = json.loads(given) if isinstance(given, str) else given
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise Refusal(f"`{where}` has a call without a `name`, or whose `arguments` are no JSON object", "messages")
        calls.append(
            {
                "id": str((call or {}).get("id", "")),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
        )
    return calls


def _content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refusal(f"`{where}` has no text as its content", "messages")
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text") or not isinstance(part.get("text"), str):
            what = f"a part of the type `{kind}`" if isinstance(kind, str) else "a part without a type"
            raise Refusal(f"`{where}` has {what}, and only text is read here", "messages")
        for name, value in part.items():
            if name not in _OF_PARTS and value:
                raise Refusal(unknown(name, ("type", "text"), f"a part of `{where}` has the unknown field"), "messages")
        parts.append(part["text"])
    return "".join(parts)

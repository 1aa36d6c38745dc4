"""How a model thinks before it answers a chat: what its server reports of that, and what it heeds of how to think."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from qpdsl.executor.remote.dialects.dialect import CompletionChunk, Message, Messages
from qpdsl.executor.remote.dialects.openai import thought_in
from qpdsl.executor.remote.probe.probe_client import LENGTH, ProbeClient, ProbeRequest
from qpdsl.executor.remote.server.server_capabilities import ServerThinking

# Tokens that a thought is left where it cannot be switched off, beside those of the answer.
ROOM = 768
# What has a model think and what keeps it from that: for templates that have a switch, and for servers that do.
_SWITCHES: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...] = (
    (
        {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}},
        {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
    ),
    ({"thinking": {"type": "enabled"}}, {"thinking": {"type": "disabled"}}),
    ({"enable_thinking": True}, {"enable_thinking": False}),
)
_EFFORT = "reasoning_effort"
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# Those that tell whether any does something, and a word that is none.
_FIRST, _NO_EFFORT = ("low", "high"), "qpdslword"
_BOUNDS = ("thinking_token_budget", "thinking_budget")
# A bound that shortens the thought of a probe.
_SHORT = 6


@dataclass(frozen=True, slots=True)
class SeenThinking:
    """What was found, None of a model that does not think, and notes on what is taken and ignored."""

    thinking: ServerThinking | None
    notes: tuple[str, ...] = ()


async def thinking(client: ProbeClient) -> SeenThinking:
    """What the server does with thoughts. `client` asks messages: the first that the model has something to say to."""
    plain = await _ask(client, {})
    while plain is not None and not (plain.thinks or plain.text.strip()) and len(client.prompts) > 1:
        client = replace(client, prompts=client.prompts[1:])
        plain = await _ask(client, {})
    if plain is None:
        return SeenThinking(None)
    on: Mapping[str, Any] = {}
    off: Mapping[str, Any] | None = None
    free = plain if plain.thinks else None
    for has, keeps in _SWITCHES:
        thinks = plain if plain.thinks else await _ask(client, has)
        if thinks is None or not thinks.thinks:
            continue
        answers = await _ask(client, keeps) if plain.thinks else plain
        if free is None:
            on, free = has, thinks
        if answers is not None and not answers.thinks and answers.text.strip():
            off = keeps
            break
    efforts, notes = await _efforts(client, plain)
    if free is None:
        found = next(((given, one) for given, one in efforts.values() if one.thinks), None)
        if found is None:
            return SeenThinking(None, _in_text(plain))
        on, free = found
        # Of a model that thinks where it is told to.
        off = {}
    quiet = next((given for given, one in efforts.values() if not one.thinks and one.text.strip()), None)
    off = quiet if off is None else off
    switches = {"on": on} | ({} if off is None else {"off": off})
    switches |= {word: given for word, (given, one) in efforts.items() if one.thinks}
    found_thinking = ServerThinking(
        await _field(client, on),
        "on" if plain.thinks else "off",
        switches,
        await _bound(client, on, free),
        bool(free.thought_tokens),
    )
    return SeenThinking(replace(found_thinking, returned=await _returned(client, found_thinking)), notes)


def answering(client: ProbeClient, thinking: ServerThinking) -> ProbeClient:
    """A client whose requests are answered at once, or have room for a thought where it cannot be kept from that."""
    shape = replace(client.shape, thinking=thinking)
    if "off" not in thinking.switches:
        return replace(client, shape=shape, room=ROOM)
    asked = [replace(prompt, think="off") if isinstance(prompt, Messages) else prompt for prompt in client.prompts]
    return replace(client, shape=shape, prompts=asked)


async def _ask(client: ProbeClient, fields: Mapping[str, Any], most: int = LENGTH) -> CompletionChunk | None:
    """What the first message is answered with further fields; None where these are refused."""
    written = client.written(ProbeRequest(most=most))
    return None if written is None else await client.read(written.path, {**written.body, **fields})


async def _efforts(
    client: ProbeClient, plain: CompletionChunk
) -> tuple[dict[str, tuple[Mapping[str, Any], CompletionChunk]], tuple[str, ...]]:
    """The efforts that the server heeds, with their fields and what they give; and a note where it ignores them.

    They are heeded where one gives another text than the other. Where texts are other ones each time, it is heeded what
    is told from a word that is none.
    """
    found: dict[str, tuple[Mapping[str, Any], CompletionChunk]] = {}
    for word in _FIRST:
        given = {_EFFORT: word}
        if (answer := await _ask(client, given)) is not None:
            found[word] = given, answer
    if not found:
        return {}, ()
    if client.greedy:
        said = {(one.thought, one.text, one.thought_tokens, one.prompt_tokens) for _, one in found.values()}
        heeded = len(said) > 1 or (plain.thought, plain.text, plain.thought_tokens, plain.prompt_tokens) not in said
    else:
        heeded = await _ask(client, {_EFFORT: _NO_EFFORT}) is None
    if not heeded:
        return {}, (f"accepts `{_EFFORT}` and ignores it",)
    for word in _EFFORTS:
        given = {_EFFORT: word}
        if word not in found and (answer := await _ask(client, given)) is not None:
            found[word] = given, answer
    return {word: found[word] for word in _EFFORTS if word in found}, ()


async def _field(client: ProbeClient, on: Mapping[str, Any]) -> str | None:
    """The field of a message that has its thought."""
    written = client.written(ProbeRequest())
    answer: Any = None if written is None else await client.post(written.path, {**written.body, **on})
    try:
        return thought_in(answer["choices"][0]["message"])[0]
    except (KeyError, IndexError, TypeError, AttributeError):
        return None


async def _bound(client: ProbeClient, on: Mapping[str, Any], free: CompletionChunk) -> str | None:
    """The field that bounds a thought: under it the thought is shorter, and the answer has begun."""
    for name in _BOUNDS:
        answer = await _ask(client, {**on, name: _SHORT}, 2 * LENGTH)
        if answer is None:
            continue
        if free.thought:
            shorter = 2 * len(answer.thought) < len(free.thought)
        else:
            shorter = 2 * (answer.thought_tokens or 0) < (free.thought_tokens or 0)
        if shorter and answer.text.strip():
            return name
    return None


async def _returned(client: ProbeClient, thinking: ServerThinking) -> bool:
    """Whether a message of the assistant may have its thought; what becomes of it is up to the model's template."""
    if thinking.field is None:
        return False
    first, last = client.prompts[0], client.prompts[-1]
    assert isinstance(first, Messages) and isinstance(last, Messages)
    turns = (*first.turns, Message("assistant", "A story.", "They want a story."), *last.turns)
    shape = replace(client.shape, thinking=replace(thinking, returned=True))
    return await client.ask(ProbeRequest(Messages(turns), shape=shape)) is not None


def _in_text(answer: CompletionChunk) -> tuple[str, ...]:
    thinks = "<think>" in answer.text or "[THINK]" in answer.text
    return ("leaves thoughts in the text: start it with a reasoning parser, or name the model's `tokenizer=`",) * thinks

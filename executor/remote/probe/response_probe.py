"""What an answer has beside its text: log-probabilities, token ids, a stream of chunks, counts of cached tokens."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from qpdsl.executor.remote.dialects.dialect import CompletionChunk, Message, Messages, Prompt, joined
from qpdsl.executor.remote.probe.probe_client import ProbeClient, ProbeRequest
from qpdsl.executor.remote.server.connection import Connection
from qpdsl.executor.remote.server.failures import Refused, Unreachable
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities

if TYPE_CHECKING:
    from qpdsl.executor.text.text_tokenizer import TextTokenizer

# A prompt that fills a page of any server's cache, of 128 tokens at most, and then some.
_LONG = " ".join(f"{number} and {number + 1} are {2 * number + 1}." for number in range(1, 41))
_LONG_ANSWER = 400
# Seconds in which a server that was left alone has stopped.
_PATIENCE, _LOOKS = 2.0, 0.1
# Requests that vLLM, SGLang and our own server work at, in their metrics.
_GAUGES = "vllm:num_requests_running|sglang:num_running_reqs|qpdsl_requests_running"
_RUNNING = re.compile(rf"^(?:{_GAUGES})(?:\{{.*\}})? ([0-9.]+)$", re.MULTILINE)


async def response(client: ProbeClient, number: int, text: str, tokenizer: TextTokenizer | None) -> ServerCapabilities:
    """What an answer has beside the greedy text after a prompt. `tokenizer`: where the server's ids are its."""
    shape = replace(client.shape, logprobs=True, token_ids=True)
    answer = await client.ask(ProbeRequest(client.prompts[number], shape=shape))
    logprobs = answer is not None and _are_logprobs(answer)
    token_ids = answer is not None and _are_ids(answer, text, tokenizer)
    return ServerCapabilities(
        logprobs=logprobs,
        token_ids=token_ids,
        streams=await _streams(client, number, text),
        cached_tokens=await _counts_cached(client, tokenizer),
    )


async def cancels(client: ProbeClient, number: int) -> bool:
    """Whether closing the connection ends the work, as far as the server tells of what it works at.

    Where others ask the same server at the same time it may be missed.
    """
    before = await _running(client.connection)
    written = client.written(ProbeRequest(client.prompts[number], most=_LONG_ANSWER))
    if before is None or written is None:
        return False
    body = {**client.dialect.streamed(written.body), "ignore_eos": True}
    try:
        async with aclosing(client.connection.stream(written.path, body)) as events:
            await anext(events, None)
            during = await _running(client.connection)
    except (Refused, Unreachable):
        return False
    if during is None or during <= before:
        return False
    for _ in range(int(_PATIENCE / _LOOKS)):
        if await _running(client.connection) == before:
            return True
        await asyncio.sleep(_LOOKS)
    return False


def _are_logprobs(answer: CompletionChunk) -> bool:
    """As many as tokens, where these are counted; the end's may be missing."""
    values = answer.logprobs
    drawn = None if answer.sampled_tokens is None else answer.sampled_tokens - (answer.thought_tokens or 0)
    counts = drawn is None or 0 <= drawn - len(values) <= 1
    right = all(math.isfinite(value) and value <= 1e-3 for value in values)
    return counts and right and len(set(values)) > 1


def _are_ids(answer: CompletionChunk, text: str, tokenizer: TextTokenizer | None) -> bool:
    if not answer.ids:
        return False
    if tokenizer is not None:
        return str(tokenizer.decode(list(answer.ids), skip_special_tokens=True)).strip() == text.strip()
    return answer.sampled_tokens is None or 0 <= answer.sampled_tokens - len(answer.ids) <= 1


async def _streams(client: ProbeClient, number: int, text: str) -> bool:
    """Whether the greedy text comes in pieces."""
    written = client.written(ProbeRequest(client.prompts[number]))
    if written is None:
        return False
    pieces = []
    try:
        async with aclosing(client.connection.stream(written.path, client.dialect.streamed(written.body))) as events:
            async for event in events:
                pieces.append(client.dialect.read(event))
    except (Refused, Unreachable):
        return False
    alike = joined(pieces).text == text or not client.greedy
    return sum(bool(piece.text) for piece in pieces) > 2 and alike


async def _counts_cached(client: ProbeClient, tokenizer: TextTokenizer | None) -> bool:
    """Whether a long prompt that was just asked about is told to have been in the cache."""
    prompt: Prompt = client.prompts[0]
    if isinstance(prompt, Messages):
        prompt = replace(prompt, turns=(Message("user", _LONG),))
    elif isinstance(prompt, str):
        prompt = _LONG
    elif tokenizer is not None:
        prompt = tuple(tokenizer.encode(_LONG))
    first = await client.ask(ProbeRequest(prompt, most=1))
    if first is None or first.cached_tokens is None:
        return False
    second = await client.ask(ProbeRequest(prompt, most=1))
    return second is not None and (second.cached_tokens or 0) > 0


async def _running(connection: Connection) -> int | None:
    """How many requests the server says that it works at, None where it does not say."""
    with contextlib.suppress(Refused, Unreachable):
        counts = _RUNNING.findall(await connection.text("/metrics"))
        if counts:
            return round(sum(map(float, counts)))
    with contextlib.suppress(Refused, Unreachable):
        slots = await connection.get("/slots")
        if isinstance(slots, list) and slots and all(isinstance(slot, dict) for slot in slots):
            return sum(bool(slot.get("is_processing")) for slot in slots)
    return None

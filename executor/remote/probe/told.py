"""What a server tells of the text that it writes: log-probabilities, token ids, pieces of it, what its cache had."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qpdsl.executor.remote.dialects.dialect import Answer, Messages, Prompt, joined
from qpdsl.executor.remote.probe.asking import LENGTH, Way
from qpdsl.executor.remote.server.connection import Connection
from qpdsl.executor.remote.server.errors import Refused, Unreachable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# A prompt that fills a page of any server's cache, of 128 tokens at most, and then some.
_LONG = " ".join(f"{number} and {number + 1} are {2 * number + 1}." for number in range(1, 41))
_LONG_ANSWER = 400
# Seconds in which a server that was left alone has stopped.
_PATIENCE, _LOOKS = 2.0, 0.1
# Requests that vLLM, SGLang and our own server work at, in their metrics.
_GAUGES = "vllm:num_requests_running|sglang:num_running_reqs|qpdsl_requests_running"
_RUNNING = re.compile(rf"^(?:{_GAUGES})(?:\{{.*\}})? ([0-9.]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Told:
    """What was seen of one way."""

    logprobs: bool
    token_ids: bool
    streams: bool
    cached_tokens: bool


async def tells(way: Way, number: int, text: str, tokenizer: PreTrainedTokenizerFast | None) -> Told:
    """Sees what is told of the greedy text after a prompt. `tokenizer`: where the server's ids are its."""
    shape = replace(way.shape, logprobs=True, token_ids=True)
    answer = await way.ask(way.prompts[number], shape=shape)
    logprobs = answer is not None and _are_logprobs(answer)
    token_ids = answer is not None and _are_ids(answer, text, tokenizer)
    return Told(logprobs, token_ids, await _streams(way, number, text), await _counts_cached(way, tokenizer))


async def stops_when_left(way: Way, number: int) -> bool:
    """Whether closing the connection ends the work, as far as the server tells of what it works at.

    Where others ask the same server at the same time it may be missed.
    """
    before = await _running(way.connection)
    written = way.written(way.prompts[number], most=_LONG_ANSWER)
    if before is None or written is None:
        return False
    body = {**way.dialect.streamed(written.body), "ignore_eos": True}
    try:
        async with aclosing(way.connection.stream(written.path, body)) as events:
            await anext(events, None)
            during = await _running(way.connection)
    except (Refused, Unreachable):
        return False
    if during is None or during <= before:
        return False
    for _ in range(int(_PATIENCE / _LOOKS)):
        if await _running(way.connection) == before:
            return True
        await asyncio.sleep(_LOOKS)
    return False


def _are_logprobs(answer: Answer) -> bool:
    """As many as tokens, where these are counted; the end's may be missing."""
    values = answer.logprobs
    counts = answer.sampled_tokens is None or 0 <= answer.sampled_tokens - len(values) <= 1
    right = all(math.isfinite(value) and value <= 1e-3 for value in values)
    return counts and right and len(set(values)) > 1


def _are_ids(answer: Answer, text: str, tokenizer: PreTrainedTokenizerFast | None) -> bool:
    if not answer.ids:
        return False
    if tokenizer is not None:
        return str(tokenizer.decode(list(answer.ids), skip_special_tokens=True)).strip() == text.strip()
    return answer.sampled_tokens is None or 0 <= answer.sampled_tokens - len(answer.ids) <= 1


async def _streams(way: Way, number: int, text: str) -> bool:
    """Whether the greedy text comes in pieces."""
    written = way.written(way.prompts[number], most=LENGTH)
    if written is None:
        return False
    pieces = []
    try:
        async with aclosing(way.connection.stream(written.path, way.dialect.streamed(written.body))) as events:
            async for event in events:
                pieces.append(way.dialect.read(event))
    except (Refused, Unreachable):
        return False
    return sum(bool(piece.text) for piece in pieces) > 2 and joined(pieces).text == text


async def _counts_cached(way: Way, tokenizer: PreTrainedTokenizerFast | None) -> bool:
    """Whether a long prompt that was just asked about is told to have been in the cache."""
    prompt: Prompt = way.prompts[0]
    if isinstance(prompt, Messages):
        prompt = Messages((("user", _LONG),))
    elif isinstance(prompt, str):
        prompt = _LONG
    elif tokenizer is not None:
        prompt = tuple(tokenizer.encode(_LONG))
    first = await way.ask(prompt, most=1)
    if first is None or first.cached_tokens is None:
        return False
    second = await way.ask(prompt, most=1)
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

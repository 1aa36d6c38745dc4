"""Finding out which numbers a server reads of given tokens, by value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qpdsl.executor.remote.scoring.log_probabilities import echo_reading, named_reading, prompt_reading
from qpdsl.executor.remote.scoring.native_log_probabilities import native_reading
from qpdsl.executor.remote.scoring.reading import BadAnswer, Read, Reading, Values
from qpdsl.executor.remote.scoring.reward_scores import last_row, native_last_row, token_rows
from qpdsl.executor.remote.scoring.scoring_positions import Tokens
from qpdsl.executor.remote.server.abilities import Abilities, ScoreSource
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.errors import Refused
from qpdsl.executor.requests.errors import EngineError

# Two ways to read one log-probability differ by rounding alone.
_CLOSE = 0.05
_LIKELIEST = 20


async def with_scoring(abilities: Abilities, address: Address, tokens: Sequence[int], read: Read) -> Abilities:
    """The abilities, with what the server reads of given tokens. `tokens` are at least six ids that differ, of text.

    A few short questions, for a model whose token ids the server takes. A server that took `logprob_token_ids` for
    nothing would have to tell of two ids out of the middle of the text by chance, and one that scored other tokens than
    it was given would have to hit four numbers.
    """
    found = await _rewards(abilities, address, tuple(tokens), read)
    if found.scores is not None:
        return found
    return await _log_probabilities(found, address, tuple(tokens), read)


async def _log_probabilities(abilities: Abilities, address: Address, tokens: Tokens, read: Read) -> Abilities:
    last, wants = len(tokens) - 1, [(length, tokens[length : length + 1]) for length in range(1, len(tokens))]
    ids = tokens[-1:] + tokens[1:2]
    if address.dialect == "sglang":
        given = await _values(native_reading(tokens, wants), read)
        named = await _values(native_reading(tokens[:-1], [(last, ids)]), read)
    elif address.dialect == "vllm":
        given = await _values(prompt_reading(address.name, tokens, wants, _LIKELIEST), read)
        named = await _values(named_reading(address.name, tokens[:-1], ids), read)
    else:
        given, named = await _values(echo_reading(address.name, tokens, wants), read), None
    scored = None if given is None else [value for row in given for value in row if value is not None]
    # Text of a person is read by nothing but a model that looks at it, which is not sure of all of it.
    told = scored is not None and len(scored) == len(wants) and len(set(scored)) > 1
    named_told = named is not None and None not in named[0] and len(set(named[0])) > 1
    if told and named_told and scored is not None and named is not None:
        named_told = math.isclose(scored[-1], named[0][0] or 0.0, abs_tol=_CLOSE)
    likeliest = await _likeliest(address, tokens, read) if told and address.dialect == "vllm" else 0
    return replace(abilities, prompt_logprobs=told, named_logprobs=named_told, top_logprobs=likeliest)


async def _likeliest(address: Address, tokens: Tokens, read: Read) -> int:
    """Of how many likeliest ids it tells: vLLM has a bound, 20 unless it was started with another."""

    def counted(answer: Any) -> Values:
        told = answer["choices"][0]["prompt_logprobs"]
        return ((float(max(len(place) for place in told if place)),),)

    for most in (_LIKELIEST, 5, 1):
        reading = prompt_reading(address.name, tokens, [(1, (tokens[1], tokens[2]))], most)
        found = await _values(replace(reading, read=counted), read)
        if found is not None and (found[0][0] or 0.0) >= most:
            return most
    return 0


async def _rewards(abilities: Abilities, address: Address, tokens: Tokens, read: Read) -> Abilities:
    """Where the scores of a reward model come from. A server of a language model answers with an error."""
    name = address.name
    if address.dialect == "sglang":
        rows = await _values(_all_outputs(native_last_row(tokens, (0,))), read)
        return abilities if rows is None else replace(abilities, scores="classify", score_width=len(rows[0]))
    if address.dialect != "vllm":
        return abilities
    readings: Mapping[ScoreSource, Reading] = {
        "pooling": token_rows(name, tokens, range(len(tokens)), (0,), are_shares=False),
        "classify": last_row(name, tokens, (0,), are_shares=False),
    }
    for scores, reading in readings.items():
        rows = await _values(_all_outputs(reading), read)
        if rows is None:
            continue
        activated = replace(reading, body={**reading.body, "use_activation": True})
        shares = len(rows[0]) > 1 and await _values(_all_outputs(activated), read) == rows
        return replace(abilities, scores=scores, score_width=len(rows[0]), score_shares=shares)
    return abilities


def _all_outputs(reading: Reading) -> Reading:
    """The same question, with all numbers that the head gives at the last place."""

    def read(answer: Any) -> Values:
        rows = answer[0] if isinstance(answer, list) else answer
        rows = rows["data"][0] if "data" in rows else rows
        # A pooling of steps' marks gives no row where there is no mark.
        row = rows.get("probs") or rows.get("embedding") or [*rows["data"], ()][-1 - bool(rows["data"])]
        return (tuple(float(value) for value in row),)

    return replace(reading, read=read)


async def _values(reading: Reading, read: Read) -> Values | None:
    """What is answered; None where the server refuses the question, or answers another."""
    try:
        values, _ = await read(reading)
    except (EngineError, Refused, BadAnswer, KeyError, IndexError, TypeError, ValueError):
        return None
    return values

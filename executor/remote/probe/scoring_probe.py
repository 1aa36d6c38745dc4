"""Finding out which numbers a server reads of given tokens, by value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qpdsl.executor.remote.dialects.dialect import BadAnswer, Question, Send, Tokens, Values
from qpdsl.executor.remote.dialects.known_dialects import named
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.failures import Refused
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities
from qpdsl.executor.requests.errors import EngineError

# Two ways to read one log-probability differ by rounding alone.
_CLOSE = 0.05
_LIKELIEST = 20


async def with_scoring(
    capabilities: ServerCapabilities, address: Address, tokens: Sequence[int], send: Send
) -> ServerCapabilities:
    """The capabilities, with what the server reads of given tokens. `tokens` are at least six ids that differ, of text.

    A few short questions, for a model whose token ids the server takes. A server that took `logprob_token_ids` for
    nothing would have to tell of two ids out of the middle of the text by chance, and one that scored other tokens than
    it was given would have to hit four numbers.
    """
    found = await _rewards(capabilities, address, tuple(tokens), send)
    if found.scores is not None:
        return found
    return await _log_probabilities(found, address, tuple(tokens), send)


async def _log_probabilities(
    capabilities: ServerCapabilities, address: Address, tokens: Tokens, send: Send
) -> ServerCapabilities:
    dialect, name = named(address.dialect), address.name
    wants = [(length, tokens[length : length + 1]) for length in range(1, len(tokens))]
    given = await _values(dialect.path_question(name, tokens, wants, _LIKELIEST), send)
    asked = dialect.next_question(name, tokens[:-1], tokens[-1:] + tokens[1:2])
    next_values = None if asked is None else await _values(asked, send)
    values = [] if given is None else [value for row in given for value in row if value is not None]
    # Text of a person is read by nothing but a model that looks at it, which is not sure of all of it.
    prompt_logprobs = len(values) == len(wants) and len(set(values)) > 1
    named_logprobs = next_values is not None and None not in next_values[0] and len(set(next_values[0])) > 1
    if prompt_logprobs and named_logprobs and next_values is not None:
        named_logprobs = math.isclose(values[-1], next_values[0][0] or 0.0, abs_tol=_CLOSE)
    return replace(
        capabilities,
        prompt_logprobs=prompt_logprobs,
        named_logprobs=named_logprobs,
        top_logprobs=await _likeliest(address, tokens, send) if prompt_logprobs and dialect.reads_likeliest else 0,
    )


async def _likeliest(address: Address, tokens: Tokens, send: Send) -> int:
    """How many of the likeliest ids it reads: vLLM has a bound, 20 unless it was started with another."""

    def counted(answer: Any) -> Values:
        places = answer["choices"][0]["prompt_logprobs"]
        return ((float(max(len(place) for place in places if place)),),)

    for most in (_LIKELIEST, 5, 1):
        question = named(address.dialect).path_question(address.name, tokens, [(1, (tokens[1], tokens[2]))], most)
        found = await _values(replace(question, read=counted), send)
        if found is not None and (found[0][0] or 0.0) >= most:
            return most
    return 0


async def _rewards(
    capabilities: ServerCapabilities, address: Address, tokens: Tokens, send: Send
) -> ServerCapabilities:
    """Where the scores of a reward model come from. A server of a language model answers with an error."""
    dialect = named(address.dialect)
    for source in dialect.score_sources:
        asked = dialect.score_question(source, address.name, tokens, range(len(tokens)), (0,), shares=False)
        question = _all_outputs(asked)
        rows = await _values(question, send)
        if rows is None:
            continue
        shares = False
        if "use_activation" in question.body and len(rows[0]) > 1:
            activated = replace(question, body={**question.body, "use_activation": True})
            shares = await _values(activated, send) == rows
        return replace(capabilities, scores=source, score_width=len(rows[0]), score_shares=shares)
    return capabilities


def _all_outputs(question: Question) -> Question:
    """The same question, with all numbers that the head gives at the last place."""

    def read(answer: Any) -> Values:
        rows = answer[0] if isinstance(answer, list) else answer
        rows = rows["data"][0] if "data" in rows else rows
        # A pooling of steps' marks gives no row where there is no mark.
        row = rows.get("probs") or rows.get("embedding") or [*rows["data"], ()][-1 - bool(rows["data"])]
        return (tuple(float(value) for value in row),)

    return replace(question, read=read)


async def _values(question: Question, send: Send) -> Values | None:
    """What is answered; None where the server refuses the question, or answers another."""
    try:
        values, _ = await send(question)
    except (EngineError, Refused, BadAnswer, KeyError, IndexError, TypeError, ValueError):
        return None
    return values

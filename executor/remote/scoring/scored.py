"""Serves the requests that draw nothing, by questions to a server.

Of a language model there are two ways to read the same log-probabilities. One question can be asked about a whole
path of tokens; vLLM then computes all of it anew, as its prefix cache keeps no log-probabilities. Or each position is a
question of its own, about the token that would follow it; what stands before it comes out of the server's cache. The
cheaper way is taken, by the tokens that are computed, which depends on the request alone.

An id that the server did not tell of is asked about again, as a token that stands there.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from qpdsl.executor.remote.scoring.log_probabilities import Want, echo_reading, named_reading, prompt_reading
from qpdsl.executor.remote.scoring.native_log_probabilities import native_reading
from qpdsl.executor.remote.scoring.reading import Read, Reading, Values
from qpdsl.executor.remote.scoring.reward_scores import last_row, native_last_row, token_rows
from qpdsl.executor.remote.scoring.scoring_positions import (
    ReadingRequest,
    ScoringPosition,
    Tokens,
    paths_of,
    positions_of,
    sequences_of,
)
from qpdsl.executor.remote.server.abilities import Abilities
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Calls, Completion, ReadRequest

# What a question about one position costs with all that stands before it in the cache, in tokens: the rest of a page of
# KV, and what a request takes by itself.
_PLACE_TOKENS = 32
# vLLM takes no more ids in a question (`MAX_LOGPROB_TOKEN_IDS`).
_MOST_NAMED = 128

# A question, and the context and ids of each of its rows.
_Question = tuple[Reading, list[tuple[Tokens, Tokens]]]


async def scored(request: ReadingRequest, abilities: Abilities, address: Address, read: Read) -> Completion:
    """The completion of a request, by readings that `read` sends. Its `calls` are theirs together.

    Raises EngineError where the server does not tell what is asked.
    """
    if isinstance(request, ReadRequest) and abilities.scores is not None:
        return await _rewards(request, abilities, address, read)
    questions = _Questions(abilities, address, isinstance(request, ReadRequest))
    known: dict[tuple[Tokens, int], float] = {}
    calls: list[Calls] = []

    async def ask(asked: Sequence[_Question]) -> None:
        answers = await _answers([reading for reading, _ in asked], read)
        for (_, rows), (values, own) in zip(asked, answers, strict=True):
            calls.append(own)
            for (context, ids), row in zip(rows, values, strict=True):
                known.update({(context, id): value for id, value in zip(ids, row, strict=True) if value is not None})

    positions = positions_of(request)
    await ask(questions.first(positions))
    wanted = [(position.context, id) for position in positions for id in position.ids]
    if missing := [pair for pair in wanted if pair not in known]:
        await ask(questions.forced(missing))
    if untold := [id for context, id in missing if (context, id) not in known]:
        raise EngineError(
            f"the server of `{address}` does not tell the log-probability of token {untold[0]} at a place where it is "
            f"asked for it"
        )
    values = [
        tuple(_together([known[position.context, id] for id in group]) for group in position.groups)
        for position in positions
    ]
    return replace(request.completion(values, 0), calls=sum(calls, Calls()))


async def _answers(readings: Sequence[Reading], read: Read) -> list[tuple[Values, Calls]]:
    """The answers to all of them, which are under way at once. Where one fails, the others are given up."""
    tasks = [asyncio.ensure_future(read(reading)) for reading in readings]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _together(logprobs: Sequence[float]) -> float:
    """The logarithm of the summed probability."""
    if len(logprobs) == 1:
        return logprobs[0]
    most = max(logprobs)
    return min(most + math.log(sum(math.exp(logprob - most) for logprob in logprobs)), 0.0)


async def _rewards(request: ReadRequest, abilities: Abilities, address: Address, read: Read) -> Completion:
    model, shares = address.name, abilities.score_shares
    contexts = [request.tokens[: position + 1] for position in request.positions]
    if abilities.scores == "pooling":
        readings = [token_rows(model, contexts[-1], request.positions, request.ids, are_shares=shares)]
    elif address.dialect == "sglang":
        readings = [native_last_row(context, request.ids) for context in contexts]
    else:
        readings = [last_row(model, context, request.ids, are_shares=shares) for context in contexts]
    answers = await _answers(readings, read)
    rows = [tuple(value for value in row if value is not None) for values, _ in answers for row in values]
    return replace(request.completion(rows, 0), calls=sum((calls for _, calls in answers), Calls()))


@dataclass(frozen=True, slots=True)
class _Questions:
    """The questions to one language model.

    `reads`: the same few ids are wanted at all positions, which lie on one path.
    """

    abilities: Abilities
    address: Address
    reads: bool

    def first(self, positions: Sequence[ScoringPosition]) -> list[_Question]:
        """Those about all positions, in the cheaper of the two ways.

        Of ids that need not be likely, few of a path are told, and a verifier reads a step anew in every round.
        """
        by_place = [
            (self._next(position.context, ids), [(position.context, ids)])
            for position in positions
            for ids in _parts(position.ids)
        ]
        if not self.abilities.prompt_logprobs or (self.abilities.named_logprobs and self.reads):
            return by_place
        by_path = self._by_path(positions)
        cost = sum(len(rows[-1][0]) for _, rows in by_path)
        is_cheaper = len(by_place) * _PLACE_TOKENS < cost
        return by_place if self.abilities.named_logprobs and is_cheaper else by_path

    def forced(self, missing: Iterable[tuple[Tokens, int]]) -> list[_Question]:
        """Those about ids that were not told, each put where it is asked for."""
        if not self.abilities.prompt_logprobs:
            return []
        return [
            self._path(sequences[-1], [(len(sequence) - 1, sequence[-1:]) for sequence in sequences])
            for sequences in sequences_of(missing)
        ]

    def _by_path(self, positions: Sequence[ScoringPosition]) -> list[_Question]:
        if self.address.dialect == "sglang":
            return [self._path(path[-1].context, _wants(path)) for path in paths_of(positions)]
        if self.reads:
            # What follows all of the tokens is told of none, so one of the ids is put there.
            return [self._path((*path[-1].context, path[-1].ids[0]), _wants(path)) for path in paths_of(positions)]
        return self.forced((position.context, id) for position in positions for id in position.ids)

    def _path(self, tokens: Tokens, wants: Sequence[Want]) -> _Question:
        rows = [(tokens[:length], ids) for length, ids in wants]
        if self.address.dialect == "sglang":
            return native_reading(tokens, wants), rows
        if self.address.dialect == "vllm":
            return prompt_reading(self.address.name, tokens, wants, self.abilities.top_logprobs), rows
        return echo_reading(self.address.name, tokens, wants), rows

    def _next(self, tokens: Tokens, ids: Tokens) -> Reading:
        if self.address.dialect == "sglang":
            return native_reading(tokens, [(len(tokens), ids)])
        return named_reading(self.address.name, tokens, ids)


def _wants(path: Sequence[ScoringPosition]) -> list[Want]:
    return [(len(position.context), position.ids) for position in path]


def _parts(ids: Tokens) -> list[Tokens]:
    return [ids[start : start + _MOST_NAMED] for start in range(0, len(ids), _MOST_NAMED)]

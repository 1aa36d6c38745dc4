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

from qpdsl.executor.remote.dialects.dialect import Question, Send, Tokens, Values, Want
from qpdsl.executor.remote.dialects.known_dialects import named
from qpdsl.executor.remote.dialects.openai import OpenAIDialect
from qpdsl.executor.remote.server.address import Address
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Calls, Completion, ReadingRequest

# What a question about one position costs with all that stands before it in the cache, in tokens: the rest of a page of
# KV, and what a request takes by itself.
_PLACE_TOKENS = 32
# vLLM takes no more ids in a question (`MAX_LOGPROB_TOKEN_IDS`).
_MAX_NAMED = 128

# A question, and the context and ids of each of its rows.
_Asked = tuple[Question, list[tuple[Tokens, Tokens]]]


@dataclass(frozen=True, slots=True)
class ScoringPosition:
    """After the tokens of `context`, one value for each group of ids: of their summed probability."""

    context: Tokens
    groups: tuple[Tokens, ...]

    @property
    def ids(self) -> Tokens:
        """All ids of its groups, each once."""
        return tuple(dict.fromkeys(id for group in self.groups for id in group))


async def scored(request: ReadingRequest, capabilities: ServerCapabilities, address: Address, send: Send) -> Completion:
    """The completion of a request, by questions that `send` sends. Its `calls` are theirs together.

    Raises EngineError where the server does not tell what is asked.
    """
    if request.ids is not None and capabilities.scores is not None:
        return await _rewards(request, request.ids, capabilities, address, send)
    questions = _Questions(capabilities, address, request.ids is not None)
    known: dict[tuple[Tokens, int], float] = {}
    calls: list[Calls] = []

    async def ask(asked: Sequence[_Asked]) -> None:
        answers = await _answers([question for question, _ in asked], send)
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
        raise EngineError(f"the server of `{address}` did not return the log-probability of token {untold[0]}")
    values = [
        tuple(_together([known[position.context, id] for id in group]) for group in position.groups)
        for position in positions
    ]
    return replace(request.completion(values, 0), calls=sum(calls, Calls()))


async def _answers(questions: Sequence[Question], send: Send) -> list[tuple[Values, Calls]]:
    """The answers to all of them, which are under way at once. Where one fails, the others are given up."""
    tasks = [asyncio.ensure_future(send(question)) for question in questions]
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


async def _rewards(
    request: ReadingRequest, ids: Tokens, capabilities: ServerCapabilities, address: Address, send: Send
) -> Completion:
    model, shares = address.name, capabilities.score_shares
    contexts = [request.tokens[: position + 1] for position in request.positions]
    source, ask = capabilities.scores, named(address.dialect).score_question
    assert source is not None
    if source == "pooling":
        questions = [ask(source, model, contexts[-1], request.positions, ids, shares=shares)]
    else:
        questions = [ask(source, model, context, (), ids, shares=shares) for context in contexts]
    answers = await _answers(questions, send)
    rows = [tuple(value for value in row if value is not None) for values, _ in answers for row in values]
    return replace(request.completion(rows, 0), calls=sum((calls for _, calls in answers), Calls()))


@dataclass(frozen=True, slots=True)
class _Questions:
    """The questions to one language model.

    `reads`: the same few ids are wanted at all positions, which lie on one path.
    """

    capabilities: ServerCapabilities
    address: Address
    reads: bool

    def first(self, positions: Sequence[ScoringPosition]) -> list[_Asked]:
        """Those about all positions, in the cheaper of the two ways.

        Of ids that need not be likely, few of a path are told, and a verifier reads a step anew in every round.
        """
        pairs = [(position.context, ids) for position in positions for ids in _parts(position.ids)]
        if not self.capabilities.prompt_logprobs or (self.capabilities.named_logprobs and self.reads):
            return self._by_place(pairs)
        by_path = self._by_path(positions)
        cost = sum(len(rows[-1][0]) for _, rows in by_path)
        is_cheaper = len(pairs) * _PLACE_TOKENS < cost
        return self._by_place(pairs) if self.capabilities.named_logprobs and is_cheaper else by_path

    def forced(self, missing: Iterable[tuple[Tokens, int]]) -> list[_Asked]:
        """Those about ids that were not told, each put where it is asked for."""
        if not self.capabilities.prompt_logprobs:
            return []
        return [
            self._path(sequences[-1], [(len(sequence) - 1, sequence[-1:]) for sequence in sequences])
            for sequences in _sequences(missing)
        ]

    def _by_place(self, pairs: Sequence[tuple[Tokens, Tokens]]) -> list[_Asked]:
        found: list[_Asked] = []
        for context, ids in pairs:
            question = self._dialect.next_question(self.address.name, context, ids)
            if question is None:
                raise EngineError(f"the dialect of `{self.address}` has no question about the token that comes next")
            found.append((question, [(context, ids)]))
        return found

    def _by_path(self, positions: Sequence[ScoringPosition]) -> list[_Asked]:
        paths = _position_paths(positions)
        if self._dialect.reads_next:
            return [self._path(path[-1].context, _wants(path)) for path in paths]
        if self.reads:
            # What follows all of the tokens is not read, so one of the ids is put there.
            return [self._path((*path[-1].context, path[-1].ids[0]), _wants(path)) for path in paths]
        return self.forced((position.context, id) for position in positions for id in position.ids)

    def _path(self, tokens: Tokens, wants: Sequence[Want]) -> _Asked:
        question = self._dialect.path_question(self.address.name, tokens, wants, self.capabilities.top_logprobs)
        return question, [(tokens[:length], ids) for length, ids in wants]

    @property
    def _dialect(self) -> OpenAIDialect:
        return named(self.address.dialect)


def _wants(path: Sequence[ScoringPosition]) -> list[Want]:
    return [(len(position.context), position.ids) for position in path]


def _parts(ids: Tokens) -> list[Tokens]:
    return [ids[start : start + _MAX_NAMED] for start in range(0, len(ids), _MAX_NAMED)]


def positions_of(request: ReadingRequest) -> list[ScoringPosition]:
    """The positions of a request, in the order of its positions."""
    if request.tree is not None:
        nodes, parents = request.tree
        contexts = [request.tokens[: len(request.tokens) - len(nodes)]]
        for node, parent in zip(nodes, parents, strict=True):
            contexts.append((*contexts[parent + 1], node))
    else:
        contexts = [request.tokens[: position + 1] for position in request.positions]
    return [ScoringPosition(context, request.read_ids(number)) for number, context in enumerate(contexts)]


def _position_paths(positions: Sequence[ScoringPosition]) -> list[list[ScoringPosition]]:
    """The positions by the longest contexts that they lead to: each is on the first path that begins with its tokens.

    Of positions that lie on one way, such as those of a `ReadRequest`, there is one path. The last leads furthest.
    """
    by_context = {position.context: position for position in positions}
    return [[by_context[context] for context in reversed(path)] for path in _paths(list(by_context))]


def _sequences(asked: Iterable[tuple[Tokens, int]]) -> list[list[Tokens]]:
    """Ids with what stands before them, by the longest sequences, which begin with the others: the longest is last."""
    return [path[::-1] for path in _paths(list(dict.fromkeys((*context, id) for context, id in asked)))]


def _paths(sequences: list[Tokens]) -> list[list[Tokens]]:
    """The sequences that none begins with, each in front of those that it begins with, which stand with the first."""
    paths: list[list[Tokens]] = []
    for sequence in sorted(sequences, key=len, reverse=True):
        home = next((path for path in paths if path[0][: len(sequence)] == sequence), None)
        if home is None:
            paths.append([sequence])
        else:
            home.append(sequence)
    return paths

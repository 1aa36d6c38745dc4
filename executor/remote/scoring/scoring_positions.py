"""What a request that draws nothing wants to know: which ids, after which tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qpdsl.executor.requests.request import LogProbRequest, ReadRequest, TreeRequest

Tokens = tuple[int, ...]
ReadingRequest = ReadRequest | LogProbRequest | TreeRequest


@dataclass(frozen=True, slots=True)
class ScoringPosition:
    """After the tokens of `context`, one value for each group of ids: of their summed probability."""

    context: Tokens
    groups: tuple[Tokens, ...]

    @property
    def ids(self) -> Tokens:
        """All ids of its groups, each once."""
        return tuple(dict.fromkeys(id for group in self.groups for id in group))


def positions_of(request: ReadingRequest) -> list[ScoringPosition]:
    """The positions of a request, in the order of its positions."""
    if isinstance(request, TreeRequest):
        contexts = [request.prompt]
        for node, parent in zip(request.nodes, request.parents, strict=True):
            contexts.append((*contexts[parent + 1], node))
    else:
        contexts = [request.tokens[: position + 1] for position in request.positions]
    if isinstance(request, ReadRequest):
        return [ScoringPosition(context, tuple((id,) for id in request.ids)) for context in contexts]
    return [ScoringPosition(context, request.read_ids(number)) for number, context in enumerate(contexts)]


def paths_of(positions: Sequence[ScoringPosition]) -> list[list[ScoringPosition]]:
    """The positions by the longest contexts that they lead to: each is on the first path that begins with its tokens.

    Of positions that lie on one way, such as those of a `ReadRequest`, there is one path. The last leads furthest.
    """
    by_context = {position.context: position for position in positions}
    return [[by_context[context] for context in reversed(path)] for path in _paths(list(by_context))]


def sequences_of(asked: Iterable[tuple[Tokens, int]]) -> list[list[Tokens]]:
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

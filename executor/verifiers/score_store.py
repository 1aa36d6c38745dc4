"""Scores by content, kept from one problem to the next."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

_MOST = 200_000


class StoredScore(NamedTuple):
    """A score, and the engine's seconds that it took to read it."""

    score: float
    seconds: float


class ScoreStore:
    """The latest `most` scores that any instance of a session read, by a digest of the model and the tokens so far.

    They are kept only where a model's numbers do not depend on what else is in a batch, so that it makes no difference
    which instance came first.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._scores: OrderedDict[bytes, StoredScore] = OrderedDict()
        self._most = most

    def get(self, content: bytes) -> StoredScore | None:
        stored = self._scores.get(content)
        if stored is not None:
            self._scores.move_to_end(content)
        return stored

    def put(self, content: bytes, score: float, seconds: float = 0.0) -> None:
        """Keeps a score; the first one of a content stays."""
        self._scores.setdefault(content, StoredScore(score, seconds))
        if len(self._scores) > self._most:
            self._scores.popitem(last=False)

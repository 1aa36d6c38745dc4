"""Scores by content, kept from one problem to the next."""

from __future__ import annotations

from collections import OrderedDict

_MOST = 200_000


class ScoreStore:
    """The latest `most` scores that any instance of a session read, by a digest of the model and the tokens so far.

    They are kept only where a model's numbers do not depend on what else is in a batch, so that it makes no difference
    which instance came first.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._scores: OrderedDict[bytes, float] = OrderedDict()
        self._most = most

    def get(self, content: bytes) -> float | None:
        score = self._scores.get(content)
        if score is not None:
            self._scores.move_to_end(content)
        return score

    def put(self, content: bytes, score: float) -> None:
        """Keeps a score; the first one of a content stays."""
        self._scores.setdefault(content, score)
        if len(self._scores) > self._most:
            self._scores.popitem(last=False)

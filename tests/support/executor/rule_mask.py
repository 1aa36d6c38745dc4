"""A mask made by hand: what may come next follows from the tokens before by arithmetic, and is often one id alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qpdsl.executor.requests.request import Bits
from tests.support.executor.models import VOCABULARY


class RuleMask:
    """An engine `Mask`. It ends after `most` tokens."""

    def __init__(self, most: int = 1000, tokens: Sequence[int] = ()) -> None:
        self._most = most
        self._tokens = list(tokens)

    @property
    def error(self) -> str | None:
        return None

    def push(self, token: int) -> bool:
        assert token in allowed(self._tokens)
        self._tokens.append(token)
        return len(self._tokens) >= self._most

    def fork(self) -> RuleMask:
        return RuleMask(self._most, self._tokens)

    def forced(self) -> list[int]:
        tokens = list(self._tokens)
        while len(tokens) < self._most and len(only := allowed(tokens)) == 1:
            tokens += only
        return tokens[len(self._tokens) :]

    def admits(self, tokens: Sequence[int]) -> int:
        taken = list(self._tokens)
        for count, token in enumerate(tokens):
            if token not in allowed(taken) or len(taken) >= self._most:
                return count
            taken.append(token)
        return len(tokens)

    def fill(self, masks: Sequence[RuleMask], bits: Bits) -> None:
        for row, mask in zip(bits, masks, strict=True):
            _fill(mask._tokens, row)

    def fill_ahead(self, masks: Sequence[RuleMask], paths: Sequence[Sequence[Sequence[int]]], bits: Bits) -> None:
        row = 0
        for mask, own in zip(masks, paths, strict=True):
            for path in [(), *own]:
                if mask.admits(path) == len(path):
                    _fill([*mask._tokens, *path], bits[row])
                row += 1


def allowed(tokens: Sequence[int]) -> list[int]:
    """The ids that may follow: in two of seven cases a single one."""
    state = (31 * len(tokens) + sum(tokens)) % 7
    if state < 2:
        return [1 + (7 * sum(tokens) + len(tokens)) % (VOCABULARY - 1)]
    return [token for token in range(1, VOCABULARY) if token % 3 != state % 3]


def _fill(tokens: Sequence[int], row: Bits) -> None:
    ids = np.zeros(len(row) * 32, dtype=np.uint8)
    ids[allowed(tokens)] = 1
    row[:] = np.packbits(ids, bitorder="little").view(np.int32)

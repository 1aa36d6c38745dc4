"""Free text in which some texts never appear, and which does not end before so many tokens, as a mask of ids.

An id completes a text where its bytes have the text in them, or begin with the rest of one whose first bytes are the
last that were written, in whatever tokens, this call's or an earlier one's. Ids without text complete none, but for a
special token that is written like one of the texts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from qpdsl.executor.requests.request import Bits


class TokenTexts:
    """What each id of a model adds to a text: `token_bytes`; and the ids of `added` tokens by name."""

    def __init__(self, token_bytes: Sequence[bytes], added: Mapping[str, int]) -> None:
        self.token_bytes, self.added = token_bytes, added
        self.in_order = sorted((data, id) for id, data in enumerate(token_bytes) if data)


class BannedTexts:
    """The ids of a model that complete one of some texts."""

    def __init__(self, tokens: TokenTexts, texts: tuple[str, ...]) -> None:
        self.token_bytes, self._sorted = tokens.token_bytes, tokens.in_order
        self._words = -(-len(self.token_bytes) // 32)
        self._texts = [text.encode() for text in texts]
        self.reach = max(map(len, self._texts), default=1) - 1
        whole = {id for data, id in self._sorted if any(text in data for text in self._texts)}
        whole |= {id for text, id in tokens.added.items() if text in texts}
        # Words have bits behind the last id, which nothing may come by.
        self._free = self.bits(range(len(self.token_bytes))) & ~self.bits(whole)
        self._behind: dict[bytes, Bits] = {}

    def bits(self, ids: Collection[int]) -> Bits:
        """int32 [ids / 32]: a bit for each id, the first in the lowest, those of these ids."""
        bits = np.zeros(self._words * 32, dtype=np.bool_)
        bits[list(ids)] = True
        return np.packbits(bits, bitorder="little").view(np.int32)

    def allowed(self, last: bytes) -> Bits:
        """What may follow a text that ends with these bytes."""
        begun = ((text, size) for text in self._texts for size in range(1, len(text)) if last.endswith(text[:size]))
        allowed = self._free
        for rest in {text[size:] for text, size in begun}:
            if rest not in self._behind:
                first = bisect_left(self._sorted, (rest, -1))
                behind = first
                while behind < len(self._sorted) and self._sorted[behind][0].startswith(rest):
                    behind += 1
                self._behind[rest] = ~self.bits([id for _, id in self._sorted[first:behind]])
            allowed = allowed & self._behind[rest]
        return allowed


class TextMask:
    """An engine `Mask`. `ends` are the bits of what ends a sample, which comes after `left` more tokens at first."""

    error = None

    def __init__(self, banned: BannedTexts, ends: Bits, last: bytes, left: int) -> None:
        self._banned, self._ends, self._last, self._left = banned, ends, last, left

    def push(self, token: int) -> bool:
        self._left -= 1
        last, reach = self._last + self._banned.token_bytes[token], self._banned.reach
        self._last = last[max(0, len(last) - reach) :]
        return False

    def fork(self) -> TextMask:
        return TextMask(self._banned, self._ends, self._last, self._left)

    def forced(self) -> list[int]:
        return []

    def admits(self, tokens: Sequence[int]) -> int:
        mask = self.fork()
        for number, token in enumerate(tokens):
            if not int(mask._allowed()[token // 32]) >> (token % 32) & 1:
                return number
            mask.push(token)
        return len(tokens)

    def fill(self, masks: Sequence[TextMask], bits: Bits) -> None:
        for row, mask in zip(bits, masks, strict=True):
            row[:] = mask._allowed()

    def fill_ahead(self, masks: Sequence[TextMask], paths: Sequence[Sequence[Sequence[int]]], bits: Bits) -> None:
        every: list[TextMask] = []
        for mask, own in zip(masks, paths, strict=True):
            every.append(mask)
            for path in own:
                every.append(mask.fork())
                for token in path:
                    every[-1].push(token)
        self.fill(every, bits)

    def _allowed(self) -> Bits:
        allowed = self._banned.allowed(self._last)
        held = allowed & ~self._ends
        # There must be something to draw.
        return held if self._left > 0 and held.any() else allowed


def text_masks(banned: BannedTexts, least: int, earlier: Sequence[int], ends: frozenset[int]) -> Callable[[], TextMask]:
    """Makes a fresh mask for each sample behind the tokens `earlier`, which one of `ends` ends."""
    last = b""
    for token in reversed(earlier):
        if len(last) >= banned.reach:
            break
        last = banned.token_bytes[token] + last
    end_bits = banned.bits(ends)
    return lambda: TextMask(banned, end_bits, last, least)

"""The metadata of a step for paged attention: page tables, contexts, shared prefixes, trees; the same for all layers.

The host builds it once a step (`executor/engine/batch/`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


def next_power_of_two(count: int) -> int:
    """The smallest power of two that is no smaller than `count`."""
    return 1 << max(count - 1, 0).bit_length()


@dataclass(frozen=True, slots=True)
class PrefixCascade:
    """Shared prefixes among the decoding sequences. `shared_prefixes.plan_pages` builds it.

    A tile is a run of sequences that share a range of tokens; a range that lies behind another is a level deeper.

    members: int32 [N], sequence numbers; the sequences of a tile are neighbours here
    tiles:   int32 [tiles, 5], each row (first, last, begin, end, level): the sequences members[first:last] share the
             tokens from begin to end, whose pages are in the page table of each of them; first == last is padding. A
             sequence is in at most one tile of each level, its levels count from 0 without a gap, and their token
             ranges follow each other from token 0
    start:   int32 [B], where a sequence's own tokens begin: the end of its deepest shared range, 0 without one
    levels:  int32 [B], how many levels a sequence is in
    width:   no tile has more sequences than this
    depth:   the largest of `levels`
    prefix:  no tile has more tokens than this
    suffix:  no sequence has more tokens of its own than this
    """

    members: torch.Tensor
    tiles: torch.Tensor
    start: torch.Tensor
    levels: torch.Tensor
    width: int
    depth: int
    prefix: int
    suffix: int


@dataclass(frozen=True, slots=True)
class Paths:
    """Where the last tokens of a sequence lie that is a path in a tree of tokens.

    The tree has its tokens in consecutive places behind the tokens that all its paths begin with, in any order in which
    parents come first. Each token of it that is new is a sequence of its own, with a context that ends with it. The
    tokens of a context are read in the order of their positions, wherever they lie: so a path has the bits of the same
    tokens in their places. A mask over places (SpecInfer: Miao et al., 2024) would sum in another order.

    start:  int32 [B], the first position that does not lie in the place of its number; `NOWHERE` for other sequences
    places: int32 [B, L], places of the positions from `start` on; 0 after the last
    """

    start: torch.Tensor
    places: torch.Tensor


# The largest int32.
NOWHERE = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """T new tokens of B sequences: first the sequences with one token each, then the chunks of prompts.

    The last of both kinds may be padding, with no context; such a chunk may have no tokens at all.

    pages:         int32 [B, P], the page table: page ids, last dimension contiguous; ids after a context's last page
                   are never read
    context:       int32 [B], tokens of each sequence including this step's; 0 is padding, whose output is zero
    slots:         int64 [T], the slot of each new token's key and value in layer 0: page id · page_size + place
    query_start:   int32 [B+1], the first new token of each sequence; rows after the last are padding
    decodes:       how many of the first sequences have one token each
    longest:       no context is longer (an upper bound: a captured graph gives the model's limit)
    longest_query: no sequence has more new tokens than this
    cascade:       shared prefixes among the first `decodes` sequences, if any
    paths:         which of the first `decodes` sequences are paths in trees, if any
    """

    pages: torch.Tensor
    context: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor
    decodes: int
    longest: int
    longest_query: int = 1
    cascade: PrefixCascade | None = None
    paths: Paths | None = None

    @property
    def sequences(self) -> int:
        return self.pages.shape[0]


class Heads(NamedTuple):
    """What a layer's attention is given: queries [T, H, D], keys [T, KV, D] and values [T, KV, V]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


class Alibi(NamedTuple):
    """A penalty of each head's scores that grows with the distance (ALiBi: Press et al., 2022, section 3).

    slopes:  float32 [H]
    factor:  multiplies what is added
    rounded: slopes, and their products with the key's position, are rounded to bfloat16 before (Falcon)
    """

    slopes: torch.Tensor
    factor: float = 1.0
    rounded: bool = False

    def bias(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """What is added to scores of `queries` at positions int64 [..., Q, 1] and `keys` [K]: [..., H, Q or 1, K]."""
        slopes = self.slopes.float()[:, None, None]
        if self.rounded:
            return (slopes.bfloat16() * keys).float() * self.factor
        return slopes * (keys - queries)[..., None, :, :] * self.factor


class Scoring(NamedTuple):
    """How a layer turns q·k into attention weights.

    scale:   multiplies q·k
    window:  a query sees the last `window` tokens, itself included; None for all
    softcap: c maps scores s to c·tanh(s/c) (Gemma 2, section 2); None for none
    sinks:   [H], attention sinks: a score for each head that takes weight and gives no value (gpt-oss); None for none
    chunk:   a query sees the tokens of its own chunk, `chunk` long, before it (Llama 4); None for all
    alibi:   added to the scores after the scale; None for none
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    chunk: int | None = None
    alibi: Alibi | None = None

    def hidden(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Whether queries at positions int64 [..., Q, 1] do not see keys at positions [K]: [..., Q, K]."""
        hidden = keys > queries
        if self.window is not None:
            hidden |= queries - keys >= self.window
        if self.chunk is not None:
            hidden |= keys < queries // self.chunk * self.chunk
        return hidden

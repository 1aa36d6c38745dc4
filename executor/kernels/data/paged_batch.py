"""What the paged kernels know about a step: built once, on the host, and shared by all layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Cascade:
    """Shared prefixes among the decoding sequences. `cascade_plan.plan` builds it.

    members: int32 [N], sequence numbers; a tile's sequences are neighbours here
    tiles:   int32 [tiles, 5], each row (first, last, begin, end, level): the sequences members[first:last] share the
             tokens begin to end, whose pages stand in the page table of each of them; first == last is padding. A
             sequence is in at most one tile a level, its levels count from 0 without a gap, and their token ranges
             follow each other from token 0
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
class PagedBatch:
    """T new tokens of B sequences: first those of one token each that decode, then the chunks of prompts.

    pages:         int32 [B, P], page ids, last dimension contiguous; what lies past a context is never read
    context:       int32 [B], tokens of each sequence with this step's; 0 is a padding row, its output is zero
    slots:         int64 [T], where each new token's key and value of layer 0 go
    query_start:   int32 [B+1], the first new token of each sequence; rows after the last are padding
    decodes:       how many sequences come first that have one token each
    longest:       no context is longer (an upper bound: a captured graph gives the model's limit)
    longest_query: no sequence has more new tokens
    cascade:       shared prefixes among the first `decodes` sequences, if any
    """

    pages: torch.Tensor
    context: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor
    decodes: int
    longest: int
    longest_query: int = 1
    cascade: Cascade | None = None

    @property
    def sequences(self) -> int:
        return self.pages.shape[0]


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a layer turns q·k into weights.

    scale:   multiplies q·k
    window:  a query sees the last `window` tokens, itself included; None for all
    softcap: c bends scores s to c·tanh(s/c) (Gemma 2, section 2); None for none
    sinks:   [H], a score for each head that takes weight and gives no value (gpt-oss); None for none
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


def power_of_two(count: int) -> int:
    """The smallest power of two that is no smaller than `count`."""
    return 1 << max(count - 1, 0).bit_length()

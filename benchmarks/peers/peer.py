"""What a peer is: a system that the engine is measured beside. Each stands behind the same three calls."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from transformers import PreTrainedModel

from benchmarks.common.serving import Tokens


@dataclass(frozen=True)
class Room:
    """What a peer must hold: `slots` sequences at once, each of `context` tokens at most; `threads` to compute with.

    `sharing` lets prompts reuse each other's KV where the peer can; without it every run prefills every prompt.
    """

    slots: int
    context: int
    threads: int = 1
    sharing: bool = False


class Peer(Protocol):
    """A system that continues token ids."""

    def run(self, prompts: Tokens, lengths: Sequence[int]) -> Tokens:
        """Greedy continuations, of exactly `lengths` tokens."""

    def fan_out(self, prompt: Sequence[int], samples: int, length: int) -> Tokens:
        """`samples` continuations of one prompt at temperature 1, each of exactly `length` tokens."""

    def close(self) -> None:
        """Gives back its threads and memory."""


def twin(model: PreTrainedModel) -> PreTrainedModel:
    """A second model over the same weight tensors, with modules and a configuration of its own.

    Switching the attention implementation changes a model and its configuration for good.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)

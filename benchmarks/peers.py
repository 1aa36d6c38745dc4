"""The systems that the engine is measured beside, each behind the same three calls.

A peer that is not installed, or that refuses the model, is left out, with the reason in the results.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from serving import Tokens
from transformers import PreTrainedModel

GENERATE, GENERATE_BATCH, LLAMA = "generate", "generate_batch", "llama.cpp"
ALL = (GENERATE, GENERATE_BATCH, LLAMA)


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


def start(
    wanted: Sequence[str], model: PreTrainedModel, room: Room, scratch: Path
) -> tuple[dict[str, Peer], dict[str, str]]:
    """The wanted peers that run here, over the weights of `model`, and the reason for each that does not.

    Start them before `model` goes behind paged attention: they are made from it as it is.
    """
    started: dict[str, Peer] = {}
    absent: dict[str, str] = {}
    for name in wanted:
        try:
            started[name] = _start(name, model, room, scratch)
        except Exception as error:  # whatever a system of others raises where it is missing or does not suit
            absent[name] = f"{type(error).__name__}: {error}"
            print(f"without {name}: {absent[name]}")
    return started, absent


def _start(name: str, model: PreTrainedModel, room: Room, scratch: Path) -> Peer:
    # Imported here: none is a dependency of the project but transformers, and its parts move between releases.
    if name == GENERATE:
        from peer_generate import Generate

        return Generate(twin(model), room)
    if name == GENERATE_BATCH:
        from peer_generate_batch import GenerateBatch

        return GenerateBatch(twin(model), room)
    if name == LLAMA:
        from peer_llama import Llama

        return Llama(model, room, scratch)
    raise ValueError(f"no peer is called {name}")

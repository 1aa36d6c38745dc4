"""Starts the peers that run on this machine.

A peer that is not installed, or that refuses the model, is left out, with the reason in the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from benchmarks.common.settings import GENERATE, GENERATE_BATCH, LLAMA
from benchmarks.peers.peer import Peer, Room


def start_peers(
    wanted: Sequence[str], model: PreTrainedModel, room: Room, scratch: Path
) -> tuple[dict[str, Peer], dict[str, str]]:
    """The wanted peers that run here, over the weights of `model`, and the reason for each that does not.

    Start them before `model` goes behind paged attention: they are made from it as it is.
    """
    started: dict[str, Peer] = {}
    absent: dict[str, str] = {}
    for name in wanted:
        try:
            started[name] = _peer(name, model, room, scratch)
        except Exception as error:  # whatever a system of others raises where it is missing or does not suit
            absent[name] = f"{type(error).__name__}: {error}"
            print(f"without {name}: {absent[name]}")
    return started, absent


def _peer(name: str, model: PreTrainedModel, room: Room, scratch: Path) -> Peer:
    # Imported here: none is a dependency of the project but transformers, and its parts move between releases.
    if name == GENERATE:
        from benchmarks.peers.generate import Generate, twin

        return Generate(twin(model), room)
    if name == GENERATE_BATCH:
        from benchmarks.peers.generate import twin
        from benchmarks.peers.generate_batch import GenerateBatch

        return GenerateBatch(twin(model), room)
    if name == LLAMA:
        from benchmarks.peers.gguf_file import write_gguf
        from benchmarks.peers.llama import Llama, Weights

        file = scratch / "model.gguf"
        if not file.exists():
            write_gguf(model, file)
        return Llama(Weights(file), room)
    raise ValueError(f"no peer is called {name}")

"""Random trees of tokens, and the hidden states that a backend computes for them."""

from __future__ import annotations

import random
from collections.abc import Sequence as Several

import torch

from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.engine.memory.sequence import Chunk, Proposal, Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step.backends import StepBackend, backend_of
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.executor.requests.ticket import Ticket

Tokens = tuple[int, ...]


def random_tree(rng: random.Random, nodes: int, vocabulary: int, right: Tokens = ()) -> Proposal:
    """A tree of so many tokens, `right` among its paths, all of them in a random order behind their parents."""
    paths: dict[Tokens, None] = {right[: length + 1]: None for length in range(len(right))}
    while len(paths) < nodes:
        stem = rng.choice([(), *paths])
        paths[*stem, rng.randrange(1, vocabulary)] = None
    numbers: dict[Tokens, int] = {(): -1}
    waiting = [*paths]
    while waiting:
        path = rng.choice([path for path in waiting if path[:-1] in numbers])
        waiting.remove(path)
        numbers[path] = len(numbers) - 1
    ordered = [path for path in numbers if path]
    return Proposal(tuple(path[-1] for path in ordered), tuple(numbers[path[:-1]] for path in ordered))


class Bench:
    """A model's backend over a cache of its own that holds NaN where nothing was written, or zeros."""

    def __init__(self, model: PagedModel, pages: int, rows: int | None = None, filled: int = 0xFF) -> None:
        buffer = torch.full((pages * model.layout.page_bytes,), filled, dtype=torch.uint8)
        self._model, self._free = model, pages
        cache = KVCache(buffer, model.layout, 0)
        self.backend: StepBackend = backend_of(model, cache, rows, graphs=False)

    def sequence(self, tokens: Tokens, room: int) -> Sequence:
        """A sequence with pages for so many tokens behind its own."""
        request = GenerateRequest(tokens, (0,), SamplingParams(), 1)
        sequence = Sequence.of(Ticket(request, lambda ticket: None), request)
        count = -(-(len(tokens) + room) // self._model.layout.page_size)
        # Neighbours in a sequence lie apart.
        self._free -= count
        assert self._free >= 1
        ids = [(self._free + number) * self._model.layout.layers for number in range(count)]
        sequence.pages = ids[::-1]
        return sequence

    @torch.inference_mode()
    def hidden(self, chunks: list[Chunk]) -> dict[int, torch.Tensor]:
        """One forward: the hidden states that are read of each chunk, by the chunk's `id`."""
        output = self.backend.forward(chunks)
        hidden, row = {}, 0
        for chunk, count in output.readers:
            hidden[id(chunk)] = output.hidden[row : row + count].clone()
            row += count
        for chunk in chunks:
            chunk.sequence.computed += chunk.count
        return hidden


def tree_states(bench: Bench, cases: Several[tuple[Tokens, int, Proposal | None]]) -> list[torch.Tensor]:
    """For each text, number of its last tokens and proposal: hidden states after the text and every proposed token.

    The last tokens of all texts and what is proposed after them are computed in one forward.
    """
    chunks = []
    for tokens, count, proposal in cases:
        sequence = bench.sequence(tokens, 0 if proposal is None else len(proposal.tokens))
        if len(tokens) > count:
            bench.hidden([Chunk(sequence, len(tokens) - count)])
        chunks.append(Chunk(sequence, count, proposal))
    hidden = bench.hidden(chunks)
    return [hidden[id(chunk)] for chunk in chunks]


def path_states(bench: Bench, tokens: Tokens, proposal: Proposal | None) -> torch.Tensor:
    """The same for one text, each path decoded token by token."""
    states = []
    for path in [(), *([] if proposal is None else proposal.paths)]:
        sequence = bench.sequence((*tokens, *path), 0)
        if len(tokens) > 1:
            bench.hidden([Chunk(sequence, len(tokens) - 1)])
        while sequence.missing:
            chunk = Chunk(sequence, 1)
            hidden = bench.hidden([chunk])
        states.append(hidden[id(chunk)])
    return torch.cat(states)

"""The rows of a step: its chunks as sequences that kernels read, one after the other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qpdsl.executor.engine.batch.staging import Numbers
from qpdsl.executor.engine.memory.sequence import Branch, Chunk, Sequence
from qpdsl.executor.kernels.data.paged_batch import NOWHERE
from qpdsl.executor.kernels.data.rounding import next_power_of_two
from qpdsl.executor.kernels.packed import Sizes


def in_rows(chunks: list[Chunk]) -> list[Chunk]:
    """Chunks without trees in the order in which their rows follow one another: those of one row come first."""
    return sorted(chunks, key=lambda chunk: chunk.straight > 1)


def first_tokens(chunks: list[Chunk], page_size: int) -> tuple[list[int], list[int], list[int]]:
    """Token, position and slot of the first token of each chunk."""
    positions = [chunk.start for chunk in chunks]
    pairs = list(zip([chunk.sequence for chunk in chunks], positions, strict=True))
    tokens = [sequence.tokens[i] for sequence, i in pairs]
    return tokens, positions, [sequence.pages[i // page_size] * page_size + i % page_size for sequence, i in pairs]


class StepRows(NamedTuple):
    """The rows of chunks, as sequences one after the other: first `decodes` of one row, then longer ones.

    tokens, positions, slots: of each row
    sequences, context, start: of each sequence: whose pages it reads, its context and its first row
    branches:  by number, the sequences that are a token of a tree each
    reach:     all that is read lies in places below it
    read_rows, readers: the rows to read, chunk by chunk, and how many of each
    """

    tokens: list[int]
    positions: list[int]
    slots: list[int]
    sequences: list[Sequence]
    context: list[int]
    start: list[int]
    decodes: int
    branches: dict[int, Branch]
    reach: int
    read_rows: list[int]
    readers: list[tuple[Chunk, int]]


def rows_of(chunks: list[Chunk], page_size: int) -> StepRows:
    """The rows of chunks: those of one token, then tokens of trees, then the others."""
    if all(chunk.is_draw for chunk in chunks):
        sequences = [chunk.sequence for chunk in chunks]
        tokens, positions, slots = first_tokens(chunks, page_size)
        context, start = [position + 1 for position in positions], [*range(len(tokens) + 1)]
        readers = [(chunk, 1) for chunk in chunks]
        rows = (tokens, positions, slots, sequences, context, start)
        return StepRows(*rows, len(tokens), {}, max(context), start[:-1], readers)
    ordered = in_rows(chunks)
    single_ones = [chunk for chunk in ordered if chunk.straight == 1]
    sequences = [chunk.sequence for chunk in single_ones]
    tokens, positions, slots = first_tokens(single_ones, page_size)
    context = [position + 1 for position in positions]
    branches: dict[int, Branch] = {}
    first_branches: list[int] = []
    reach = 0
    for chunk in ordered:
        first_branches.append(len(tokens))
        if chunk.rows == chunk.straight:
            continue
        own, pages = chunk.tokens, chunk.sequence.pages
        for branch in chunk.branches:
            place = branch.places[-1]
            branches[len(tokens)] = branch
            tokens.append(own[branch.row])
            positions.append(branch.position)
            slots.append(pages[place // page_size] * page_size + place % page_size)
            sequences.append(chunk.sequence)
            context.append(branch.position + 1)
            reach = max(reach, place + 1)
    decodes = len(tokens)
    start = [*range(decodes + 1)]
    read_rows: list[int] = []
    readers = []
    single = 0
    for chunk, first_branch in zip(ordered, first_branches, strict=True):
        straight, begin = chunk.straight, chunk.start
        if straight == 1:
            first = single
            single += 1
        else:
            first = len(tokens)
        if straight > 1:
            end, pages = begin + straight, chunk.sequence.pages
            tokens += chunk.tokens[:straight]
            positions += range(begin, end)
            slots += [pages[i // page_size] * page_size + i % page_size for i in range(begin, end)]
            sequences.append(chunk.sequence)
            context.append(end)
            start.append(len(tokens))
        read = chunk.kept_rows
        if read:
            read_rows += [first + row if row < straight else first_branch + row - straight for row in read]
            readers.append((chunk, len(read)))
    reach = max(reach, max(context))
    return StepRows(tokens, positions, slots, sequences, context, start, decodes, branches, reach, read_rows, readers)


def with_paths(
    branches: dict[int, Branch], sizes: Sizes, is_rounded: bool = False
) -> tuple[Sizes, list[Numbers | list[int]]]:
    """The sizes with that of the paths in trees, and their parts."""
    width = max(len(branch.places) for branch in branches.values())
    if is_rounded:
        width = next_power_of_two(width)
    start = np.full(sizes.sequences, NOWHERE, dtype=np.int32)
    places = np.zeros((sizes.sequences, width), dtype=np.int32)
    for number, branch in branches.items():
        start[number] = branch.start
        places[number, : len(branch.places)] = branch.places
    return sizes._replace(path=width), [start, places]

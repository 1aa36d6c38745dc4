"""What a step packs for the attention kernels, and what is kept from one step to the next."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
import torch

from qpdsl.executor.engine.batch.kernel_batch import DirectAssembler, GraphAssembler, PackedStep
from qpdsl.executor.engine.batch.staging import Staging
from qpdsl.executor.engine.memory.sequence import Chunk, Proposal, Sequence
from qpdsl.executor.kernels.data.paged_batch import NOWHERE
from qpdsl.executor.kernels.packed import Sizes, Unpacked, pack, unpack
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.executor.requests.ticket import Ticket

PAGE, SCRATCH = 16, 1000


def chunk(length: int, pages: list[int], count: int = 1) -> Chunk:
    """The last `count` of `length` tokens, which count up from 0."""
    request = GenerateRequest(tuple(range(length)), (0,), SamplingParams(), 9)
    sequence = Sequence(Ticket(request, lambda ticket: None), request, list(range(length)), computed=length - count)
    sequence.pages = pages
    return Chunk(sequence, count)


def view(step: PackedStep) -> Unpacked:
    return unpack(torch.from_numpy(step.numbers), step.sizes)


def test_parts_come_back_as_they_were_and_begin_aligned() -> None:
    sizes = Sizes(3, 2, 5, 1, 2, 80, 2, tiles=1, members=2, depth=1, prefix=16, suffix=7)
    numbers = pack(sizes, [[1, 2, 3], [4, 5, 6], [1 << 40, 8, 9], [7, 6], [0, 1, 3], [[1] * 5, [2] * 5], [2],
                           [1, 0], [[0, 2, 0, 16, 0]], [16, 16], [1, 1]])  # fmt: skip
    tokens, positions, read_rows, batch = unpack(torch.from_numpy(numbers), sizes)
    assert (tokens.tolist(), positions.tolist(), read_rows.tolist()) == ([1, 2, 3], [4, 5, 6], [2])
    assert batch.slots.tolist() == [1 << 40, 8, 9] and batch.query_start.tolist() == [0, 1, 3]
    assert batch.pages.tolist() == [[1] * 5, [2] * 5] and batch.context.tolist() == [7, 6]
    assert batch.cascade is not None and batch.cascade.tiles.tolist() == [[0, 2, 0, 16, 0]]
    assert all(start % 4 == 0 for start in accumulate(sizes.room))


def test_a_decode_step_is_padded_with_rows_that_have_no_context() -> None:
    step = GraphAssembler(PAGE, SCRATCH).decode([chunk(20, [3, 8]), chunk(16, [5]), chunk(33, [2, 4, 6])])
    tokens, positions, _, batch = view(step)
    assert step.sizes[:7] == (4, 4, 128, 0, 4, 2048, 1)
    assert tokens.tolist() == [19, 15, 32, 0] and positions.tolist() == [19, 15, 32, 0]
    assert batch.context.tolist() == [20, 16, 33, 0]
    assert batch.slots.tolist() == [8 * PAGE + 3, 5 * PAGE + 15, 6 * PAGE, SCRATCH * PAGE]
    assert batch.query_start.tolist() == [0, 1, 2, 3, 4]


def test_a_mixed_step_puts_lone_tokens_first() -> None:
    chunks = [chunk(20, [3, 8], 4), chunk(16, [5]), chunk(7, [9], 7)]
    step = GraphAssembler(PAGE, SCRATCH).mixed(chunks)
    _, positions, read_rows, batch = view(step)
    assert (batch.decodes, batch.longest, batch.longest_query) == (1, 20, 7)
    assert positions.tolist() == [15, 16, 17, 18, 19, *range(7)]
    assert batch.query_start.tolist() == [0, 1, 5, 12]
    assert read_rows.tolist() == [0, 4, 11] and [member.sequence.pages for member, _ in step.readers] == [
        [5],
        [3, 8],
        [9],
    ]


def test_a_plain_step_is_padded_with_rows_of_no_sequence_and_rounds_nothing() -> None:
    assembler = DirectAssembler(PAGE, SCRATCH)
    step = assembler.step([chunk(33, [2, 4, 6])], 2)
    tokens, positions, read_rows, batch = view(step)
    assert tokens.tolist() == [32, 0] and positions.tolist() == [32, 0] and read_rows.tolist() == []
    assert batch.context.tolist() == [33] and batch.query_start.tolist() == [0, 1]
    assert batch.slots.tolist() == [6 * PAGE, SCRATCH * PAGE] and batch.longest == 33
    step = assembler.step([chunk(20, [3, 8], 4), chunk(16, [5]), chunk(200, [*range(20, 33)])], 2)
    _, positions, read_rows, batch = view(step)
    assert positions.tolist() == [15, 199, 16, 17, 18, 19] and read_rows.tolist() == [0, 1, 5]
    assert batch.query_start.tolist() == [0, 1, 2, 6] and batch.pages.shape == (3, 16) and batch.cascade is None
    assert [member.sequence.pages[0] for member, _ in step.readers] == [5, 20, 3]


def test_tokens_of_a_tree_are_sequences_that_read_their_paths() -> None:
    grown, other = chunk(30, [3, 8, 5], 2), chunk(16, [7])
    grown.proposal = Proposal((7, 8, 9), (-1, -1, 0))
    for step in (
        DirectAssembler(PAGE, SCRATCH).step([grown, other], 1),
        GraphAssembler(PAGE, SCRATCH).mixed([grown, other]),
    ):
        tokens, positions, read_rows, batch = view(step)
        assert tokens.tolist() == [15, 7, 8, 9, 28, 29] and positions.tolist() == [15, 30, 30, 31, 28, 29]
        assert batch.slots.tolist()[1:4] == [8 * PAGE + 14, 8 * PAGE + 15, 5 * PAGE]
        assert (batch.decodes, batch.query_start.tolist()) == (4, [0, 1, 2, 3, 4, 6])
        assert batch.context.tolist() == [16, 31, 31, 32, 30] and batch.pages[3, :3].tolist() == [3, 8, 5]
        assert batch.paths is not None and batch.paths.start.tolist() == [NOWHERE, 30, 30, 30, NOWHERE]
        assert batch.paths.places.tolist()[1:4] == [[30, 0], [31, 0], [30, 32]]
        # The one alone, then the last token of its own and those of the tree.
        assert read_rows.tolist() == [0, 5, 1, 2, 3]
    grown.proposal = Proposal((7, 8))
    step = DirectAssembler(PAGE, SCRATCH).step([grown, other], 1)
    assert view(step).batch.paths is None and step.sizes.sequences == 2


def test_fixed_steps_always_have_as_many_rows() -> None:
    assembler = GraphAssembler(PAGE, SCRATCH, 24)
    for step in (assembler.decode([chunk(20, [3, 8])]), assembler.mixed([chunk(20, [3, 8], 20), chunk(5, [1])])):
        assert step.sizes.tokens == 24
    # Room for three that decode, and the first empty sequence has the rows of padding.
    batch = view(step).batch
    assert batch.decodes == 3 and batch.context.tolist() == [5, 0, 0, 20] + [0] * 20
    assert batch.query_start.tolist() == [0, 1, 2, 3, 23] + [24] * 20


def test_a_page_that_was_copied_or_added_is_in_the_table() -> None:
    assembler = GraphAssembler(PAGE, SCRATCH)
    chunks = [chunk(32, [3, 8]), chunk(20, [3, 9])]
    assert view(assembler.decode(chunks)).batch.pages[:, :3].tolist() == [[3, 8, 0], [3, 9, 0]]
    chunks[1].sequence.pages[1] = 7
    first = chunks[0].sequence
    first.pages.append(5)
    first.tokens.append(0)
    first.computed += 1
    assert view(assembler.decode(chunks)).batch.pages[:, :3].tolist() == [[3, 8, 5], [3, 7, 0]]


def test_shared_prefixes_are_found_again_when_a_sequence_leaves_and_grow_until_then() -> None:
    assembler = GraphAssembler(PAGE, SCRATCH)
    stem = list(range(0, 160, 2))[:10]
    chunks = [chunk(161 + index, [*stem, 500 + index]) for index in range(3)]
    shared = view(assembler.decode(chunks)).batch.cascade
    assert shared is not None and shared.start.tolist() == [160, 160, 160, 0]
    assert shared.tiles.tolist() == [[0, 3, 0, 160, 0], *[[0] * 5] * 3]
    assert (shared.prefix, shared.suffix) == (2048, 2048)
    shared = view(assembler.mixed(chunks)).batch.cascade
    assert shared is not None and (shared.width, shared.prefix, shared.suffix) == (3, 160, 3)
    for member in chunks:
        member.sequence.tokens += [0] * 5
        member.sequence.computed += 5
    later = view(assembler.mixed(chunks)).batch.cascade
    assert later is not None and later.suffix == 8
    left = view(assembler.decode(chunks[:2])).batch.cascade
    assert left is not None and left.tiles.tolist()[:2] == [[0, 2, 0, 160, 0], [0] * 5]
    assert view(assembler.decode(chunks[:1])).batch.cascade is None


def test_a_sequence_that_is_computed_anew_shares_nothing_that_it_lacks() -> None:
    """Both gave way and came back in pages of their own: the first has few of its tokens, and gets one more."""
    assembler = GraphAssembler(PAGE, SCRATCH)
    stem = list(range(0, 160, 2))[:10]
    first, second = chunk(161, [*stem, 500]), chunk(162, [*stem, 501])
    assert view(assembler.mixed([first, second])).batch.cascade is not None
    first.sequence.pages, first.sequence.computed = [700, 702, 704], 33
    second.sequence.pages = list(range(800, 822, 2))
    batch = view(assembler.mixed([first, second])).batch
    assert batch.context.tolist() == [34, 162] and batch.cascade is None


@pytest.mark.parametrize(("worth", "is_shared"), [(319, True), (320, False)])
def test_a_prefix_is_shared_where_it_saves_enough(worth: int, is_shared: bool) -> None:
    """Three sequences over 160 tokens save 320."""
    stem = list(range(0, 160, 2))[:10]
    chunks = [chunk(161 + index, [*stem, 500 + index]) for index in range(3)]
    assembler = GraphAssembler(PAGE, SCRATCH, worth=worth)
    assert (view(assembler.decode(chunks)).batch.cascade is not None) == is_shared


def test_steps_that_differ_little_have_the_same_sizes() -> None:
    assembler = GraphAssembler(PAGE, SCRATCH)
    stem = list(range(0, 160, 2))[:10]
    sizes = {
        assembler.decode([chunk(161 + grown + index, [*stem, 500 + index]) for index in range(count)]).sizes
        for grown in (3, 6)
        for count in (5, 6, 8)
    }
    assert len(sizes) <= 2


def test_sizes_do_not_depend_on_how_long_the_texts_are_but_for_longer_ones_than_ever_before() -> None:
    """Each size of a captured step would have to be captured again."""
    assembler = GraphAssembler(PAGE, SCRATCH)
    stem = list(range(0, 4000, 2))

    def sizes(*lengths: int) -> Sizes:
        pages = [[*stem[: (length - 1) // PAGE], 5000 + 2 * index] for index, length in enumerate(lengths)]
        return assembler.decode([chunk(length, own) for length, own in zip(lengths, pages, strict=True)]).sizes

    alone, together = sizes(20), sizes(165, 166)
    assert sizes(700) == sizes(2048) == alone == assembler.empty(1).sizes
    assert together.tiles > 0 and sizes(900, 901) == sizes(330, 2000) == together
    wide = sizes(2049)
    assert wide.width == 4 * alone.width and sizes(20) == sizes(8000) == wide == assembler.empty(1).sizes


def test_arrays_arrive_with_their_types() -> None:
    staging = Staging("cpu")
    arrays = [np.array([1, 2, 3]), np.array([[1.5], [2.5]], dtype=np.float32), np.array([True, False]), np.array([])]
    sent = staging.send(arrays)
    assert [member.tolist() for member in sent] == [member.tolist() for member in arrays]
    assert [member.dtype for member in sent] == [torch.int64, torch.float32, torch.bool, torch.float64]
    into = torch.zeros(64, dtype=torch.uint8)
    (there,) = staging.send([np.arange(4)], into=into)
    assert there.data_ptr() == into.data_ptr() and into.view(torch.int64)[:4].tolist() == [0, 1, 2, 3]
    large = np.arange(1 << 15)
    assert torch.equal(staging.send([large])[0], torch.from_numpy(large))
    assert sent[0].tolist() == [1, 2, 3], "what was sent before is as it was"
    assert staging.start_fetch(torch.tensor([1.0, 2.0])).wait().tolist() == [1.0, 2.0]

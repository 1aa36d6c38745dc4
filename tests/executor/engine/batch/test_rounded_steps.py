"""Steps whose sizes are rounded up for captured graphs: the same rows as with their own sizes, in few sizes."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qpdsl.executor.engine.batch.kernel_batch import MAX_ROWS, GraphAssembler, PackedStep
from qpdsl.executor.engine.memory.sequence import Chunk, Proposal, Sequence
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import NOWHERE, Scoring
from qpdsl.executor.kernels.packed import Sizes, unpack
from qpdsl.executor.requests.request import GenerateRequest, ReadRequest, Request, SamplingParams
from qpdsl.executor.requests.ticket import Ticket

PAGE, SCRATCH = 16, 9000
TREE = Proposal((7, 8, 9), (-1, -1, 0))


def chunk(length: int, count: int, pages: list[int], reads: tuple[int, ...] = (), tree: bool = False) -> Chunk:
    """The last `count` of `length` tokens; with `reads`, of a request that reads there."""
    tokens = tuple(range(length))
    request: Request = GenerateRequest(tokens, (0,), SamplingParams(), 9)
    if reads:
        request = ReadRequest(tokens, reads, (1,))
    sequence = Sequence(Ticket(request, lambda ticket: None), request, list(tokens), computed=length - count)
    sequence.pages = pages
    return Chunk(sequence, count, TREE if tree else None)


Row = tuple[object, ...]


def rows_of(step: PackedStep) -> tuple[list[Row], list[Row]]:
    """What each row is that has a context, with the pages that it reads, and which of them are read, in order."""
    tokens, positions, wanted, batch = unpack(torch.from_numpy(step.numbers), step.sizes)
    sequence_of: dict[int, int] = {}
    starts = batch.query_start.tolist()
    for number, (first, last) in enumerate(itertools.pairwise(starts)):
        sequence_of.update(dict.fromkeys(range(first, last), number))
    rows: list[Row] = []
    for row in range(step.sizes.tokens):
        number = sequence_of[row]
        context = int(batch.context[number])
        pages = batch.pages[number, : -(-context // PAGE)].tolist()
        path: list[int] = []
        if batch.paths is not None and (start := int(batch.paths.start[number])) != NOWHERE:
            path = batch.paths.places[number, : context - start].tolist()
        position, slot = int(positions[row]), int(batch.slots[row])
        rows.append((int(tokens[row]), position, slot, context, tuple(pages), tuple(path)))
    read = [rows[row] for row in wanted.tolist()] if step.sizes.wanted else rows
    count = sum(count for _, count in step.readers)
    return [row for row in rows if row[3]], read[:count]


@st.composite
def steps(draw: st.DrawFn) -> list[Chunk]:
    chunks: list[Chunk] = []
    for index in range(draw(st.integers(1, 24))):
        length = draw(st.integers(2, 150))
        pages = [100 * index + page for page in range(-(-(length + 3) // PAGE))]
        count = draw(st.sampled_from([1, 1, 1, 2, 5, 17, length]))
        count = min(count, length)
        first = length - count
        reads = tuple(sorted(draw(st.sets(st.integers(first, length - 1), max_size=8)))) if draw(st.booleans()) else ()
        chunks.append(chunk(length, count, pages, reads, tree=not reads and draw(st.integers(0, 9)) == 0))
    return chunks


@settings(max_examples=30)
@given(steps(), st.sampled_from([None, 1024]))
def test_rounding_changes_no_row(chunks: list[Chunk], fixed: int | None) -> None:
    exact = GraphAssembler(PAGE, SCRATCH).mixed(chunks)
    step = GraphAssembler(PAGE, SCRATCH, fixed).rounded(chunks)
    if step is None:
        assert exact.sizes.tokens > MAX_ROWS // 2
        return
    assert step.readers == exact.readers
    assert rows_of(step) == rows_of(exact)
    sizes, batch = step.sizes, unpack(torch.from_numpy(step.numbers), step.sizes).batch
    starts = batch.query_start.tolist()
    assert (starts[0], starts[-1], len(starts)) == (0, sizes.tokens, sizes.sequences + 1)
    lengths = [after - before for before, after in itertools.pairwise(starts)]
    assert all(length == 1 for length in lengths[: sizes.decodes])
    assert all(0 <= length <= sizes.longest_query for length in lengths[sizes.decodes :])
    assert int(batch.context.max()) <= sizes.longest == sizes.width * PAGE
    # Rows of padding write where nothing is read.
    padding = batch.slots.tolist().count(SCRATCH * PAGE)
    assert padding == sizes.tokens - exact.sizes.tokens
    assert sizes.tokens <= (fixed or MAX_ROWS)


@pytest.mark.parametrize(("fixed", "long"), [(None, 9), (24, 17)])
def test_rows_of_padding_are_zero_and_the_others_as_they_are(fixed: int | None, long: int) -> None:
    """By the kernels, with a prefix that two of the sequences share."""
    rng = torch.Generator().manual_seed(0)
    stem = [*range(0, 20, 2)]
    chunks = [
        chunk(150, 1, stem),
        chunk(155, 1, [*stem[:9], 40]),
        chunk(40, long, [60, 62, 64]),
        chunk(20, 2, [70, 72]),
    ]
    rows = KVRows.plain(torch.randn(100, PAGE, 2, 1, 16, generator=rng))
    given_rows, scoring = torch.randn(4 + long, 2, 16, generator=rng), Scoring(0.3)
    results = []
    for step in (GraphAssembler(PAGE, 90).mixed(chunks), GraphAssembler(PAGE, 90, fixed).rounded(chunks)):
        assert step is not None
        batch = unpack(torch.from_numpy(step.numbers), step.sizes).batch
        real = [row for row, slot in enumerate(batch.slots.tolist()) if slot != 90 * PAGE]
        query = torch.full((step.sizes.tokens, 2, 16), 7.0)
        query[real] = given_rows
        out = paged_attention.attention(query, rows, batch, 0, scoring, deterministic=step.sizes.tiles == 0)
        assert not out[[row for row in range(len(out)) if row not in real]].any()
        results.append(out[real])
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("count", [MAX_ROWS, MAX_ROWS + 1])
def test_a_step_with_more_rows_is_not_rounded(count: int) -> None:
    step = GraphAssembler(PAGE, SCRATCH).rounded([chunk(600, count, [*range(38)])])
    assert (step is None) == (count > MAX_ROWS)


def test_steps_of_fixed_rows_have_few_shapes() -> None:
    """Eight, by how many sequences decode beside the chunks. A full step has no room to round that up."""
    assembler = GraphAssembler(PAGE, SCRATCH, 64)
    pages = [*range(10)]
    sizes: set[Sizes] = set()
    for decodes in range(63):
        for count in {2, 56 - decodes, 64 - decodes}:
            if not 2 <= count <= 64 - decodes:
                continue
            chunks = [*(chunk(30, 1, pages) for _ in range(decodes)), chunk(90, count, pages, reads=(89,))]
            step = assembler.rounded(chunks)
            assert step is not None and step.sizes == assembler.mixed(chunks).sizes
            if decodes + count <= 57:
                sizes.add(step.sizes)
                assert decodes <= step.sizes.decodes < decodes + 8
            assert decodes <= step.sizes.decodes <= 64 - count
    assert len(sizes) == len({step.decodes for step in sizes}) == 8


class Search:
    """A beam search over several problems on a made-up engine: which chunks come step by step, and no more.

    Each problem has a prompt and `beams` candidates that share it and are extended by reasoning steps of a few dozen
    tokens; a verifier reads each step behind what it has computed.
    """

    def __init__(self, seed: int, problems: int, beams: int) -> None:
        self.random = random.Random(seed)
        self.pages = itertools.count(0, 2)
        self.beams = beams
        self.most = problems * beams
        self.generator: list[Chunk] = []
        self.verifier: list[Chunk] = []
        self.left: dict[Sequence, int] = {}
        self.stem: dict[Sequence, list[int]] = {}
        for _ in range(problems):
            self.open()

    def open(self) -> None:
        """A new problem: its prompt is prefilled, then its candidates decode."""
        length = self.random.randint(60, 400)
        stem = [next(self.pages) for _ in range(length // PAGE)]
        self.generator.append(chunk(length, length, [*stem, next(self.pages), next(self.pages)]))

    def step(self) -> list[list[Chunk]]:
        """The chunks of the next steps of both models."""
        stepped, self.generator = self.generator, []
        read, self.verifier = self.verifier, []
        for member in stepped:
            sequence = member.sequence
            if member.count > 1:
                for _ in range(self.beams):
                    self.candidate(sequence.tokens, sequence.pages)
                continue
            sequence.computed += 1
            sequence.tokens.append(0)
            if len(sequence.tokens) > PAGE * (len(sequence.pages) - 1):
                sequence.pages.append(next(self.pages))
            self.left[sequence] -= 1
            if self.left[sequence] > 0:
                self.generator.append(member)
                continue
            length, count = len(sequence.tokens), min(self.random.randint(20, 60), len(sequence.tokens))
            self.verifier.append(chunk(length, count, list(sequence.pages), reads=(length - 1,)))
            # Candidates are kept, forked or given up.
            for _ in range(0 if length > 500 else self.random.choice([0, 1, 1, 2])):
                self.candidate(sequence.tokens, sequence.pages)
        # What is left of problems gives way to new ones.
        while sum(self.beams if member.count > 1 else 1 for member in self.generator) + self.beams <= self.most:
            self.open()
        return [chunks for chunks in (stepped, read) if chunks]

    def candidate(self, tokens: list[int], pages: list[int]) -> None:
        whole = (len(tokens) - 1) // PAGE
        own = [*pages[:whole], next(self.pages), next(self.pages)]
        member = chunk(len(tokens), 1, own)
        self.left[member.sequence] = self.random.randint(20, 60)
        self.generator.append(member)


def test_a_search_has_few_sizes_of_steps() -> None:
    """Eight beam searches at a time, with verifier steps in between: four of five steps replay one that came before."""
    search = Search(0, problems=8, beams=8)
    assemblers = [GraphAssembler(PAGE, SCRATCH), GraphAssembler(PAGE, SCRATCH)]
    seen: list[Counter[Sizes]] = [Counter(), Counter()]
    kinds: Counter[bool] = Counter()
    for _ in range(400):
        for model, chunks in enumerate(search.step()):
            is_decode = all(member.rows == 1 and member.read_rows for member in chunks)
            assembler = assemblers[model]
            step = assembler.decode(chunks) if is_decode else assembler.rounded(chunks)
            if step is not None:
                seen[model][step.sizes] += 1
                kinds[is_decode] += 1
    assert min(kinds.values()) > 200, "the search has steps of both kinds"
    for counts in seen:
        assert len(counts) <= 32
        # The first three of each size run as they are; the third is captured.
        assert sum(min(count, 3) for count in counts.values()) < sum(counts.values()) / 5

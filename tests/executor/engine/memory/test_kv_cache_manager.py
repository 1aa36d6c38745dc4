"""The page accounts and the prefix trees of two models in one arena, without a model: tokens stand for their KV."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qpdsl.executor.engine.memory.kv_cache import Arena, KVCache, KVLayout, PagePool, Pool, SlabShare, slab_bytes
from qpdsl.executor.engine.memory.kv_cache_manager import Copies, KVCacheManager
from qpdsl.executor.engine.memory.prefix_tree import Reclaimer
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.engine.memory.state_blocks import BlockLayout
from qpdsl.executor.engine.scheduler import Scheduler, SchedulerGroup
from qpdsl.executor.kernels.data.states import FRESH
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Client, GenerateRequest, Priority, ReadRequest, SamplingParams
from qpdsl.executor.requests.ticket import Ticket

PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=14).map(tuple)
PRIORITIES = st.sampled_from((0, 0, 0, 1))
# Rows of 32 and of 96 bytes, pages of 64 and 288.
LAYOUTS = (KVLayout.equal(2, 4, 1, 1, torch.float32), KVLayout.equal(3, 4, 3, 1, torch.float32))


class NoCopies:
    """Page numbers alone."""

    def copy_page(self, source: int, target: int, tokens: int) -> None:
        pass

    def copy_token(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        pass


def memory_of(pages: int, page_size: int, copies: Copies | None = None) -> KVCacheManager:
    """The memory of a model that is alone, with pages for scratch and `pages` - 1 more."""
    layout = KVLayout.equal(1, page_size, 1, 1, torch.float32)
    pool = PagePool(Arena(pages * layout.page_bytes, layout.page_bytes), "m", layout)
    return KVCacheManager(pool, copies or NoCopies())


def drawn(tokens: list[int], index: int) -> int:
    """The next token of a sample: nothing but its number and its tokens decide it."""
    return 1 + (sum(tokens) + len(tokens) * index + index) % 2


class Fake:
    """A model in the arena whose KV is its tokens, written to every layer of the real buffer.

    Where its layers keep states, those in a block are all tokens so far (`seen`).
    """

    def __init__(
        self,
        name: str,
        layout: KVLayout,
        arena: Arena,
        reclaimer: Reclaimer,
        group: SchedulerGroup,
        blocks: BlockLayout | None = None,
        most: int | None = None,
    ) -> None:
        self.layout = layout
        self.share = SlabShare(most or arena.slabs)
        self.pool = PagePool(arena, name, layout, self.share)
        cache = KVCache(arena.buffer, layout, self.pool.scratch)
        self.width = 2 * layout.shapes[0].kv_heads * layout.shapes[0].key
        count = arena.buffer.numel() // layout.row_bytes
        rows = arena.buffer.numpy()[: count * layout.row_bytes].view(np.float32)
        self.rows = rows.reshape(count, layout.page_size, self.width)
        self.blocks = None if blocks is None else Pool(arena, f"{name}: states", blocks, self.share)
        self.seen: dict[int, tuple[int, ...]] = {}
        self.memory = KVCacheManager(self.pool, cache, float(layout.layers), reclaimer, self.blocks)
        self.scheduler = Scheduler(self.memory, max_sequences=6, token_budget=10, group=group)

    def submit(self, request: GenerateRequest | ReadRequest) -> Ticket | None:
        """None where the memory can never hold the prompt."""
        ticket = Ticket(request, self.scheduler.cancel)
        sequence = Sequence.of(ticket, request)
        if self.scheduler.too_large(len(sequence.tokens)) is not None:
            return None
        self.scheduler.add(sequence)
        return ticket

    def compute(self, chunks: list[Chunk]) -> None:
        size, layers = self.layout.page_size, self.layout.layers
        assert sum(chunk.count for chunk in chunks) <= self.scheduler.token_budget
        for chunk in chunks:
            sequence = chunk.sequence
            for at in range(sequence.computed, sequence.computed + chunk.count):
                page = sequence.pages[at // size]
                assert not self.pool.shared(page), "a shared page is written"
                self.rows[page : page + layers, at % size] = sequence.tokens[at]
            self._mix(chunk)
        self.scheduler.advance(chunks)
        for chunk in chunks:
            if isinstance(chunk.sequence.request, ReadRequest):
                self._resolve_read(chunk.sequence)
            elif chunk.sequence.missing == 0:
                self._resolve_draw(chunk.sequence)

    def _mix(self, chunk: Chunk) -> None:
        """Runs the states of a chunk on."""
        row = 0
        for segment in chunk.segments:
            before = () if segment.source == FRESH else self.seen[segment.source]
            assert segment.row == row and segment.rows > 0
            row += segment.rows
            self.seen[segment.target] = (*before, *chunk.tokens[segment.row : row])
        assert row == (0 if self.blocks is None else chunk.count)

    def _check_states(self) -> None:
        """Each sequence, and each node of the tree that has states, has those of its own tokens."""
        states = self.memory.states
        if states is None:
            return
        for sequence in self.scheduler.running:
            own = sequence.states
            assert own.block == FRESH or self.seen[own.block] == tuple(sequence.tokens[: sequence.computed])
        alone = [node.gain for block, node in states.kept.nodes.items() if not states.pool.shared(block)]
        assert (states.kept.cheapest() is None) == (not alone)
        for node in states.kept.nodes.values():
            assert node.block is not None
            tokens, above = node.tokens, node.parent
            while above is not None:
                tokens, above = (*above.tokens, *tokens), above.parent
            assert self.seen[node.block] == tokens and len(tokens) == node.end

    def _resolve_read(self, sequence: Sequence) -> None:
        assert isinstance(sequence.request, ReadRequest)
        done = [at for at in sequence.request.positions if at < sequence.computed]
        sequence.values.extend([()] * (len(done) - len(sequence.values)))
        if len(done) == len(sequence.request.positions):
            self.scheduler.finish(sequence)
            sequence.ticket.finish_read(sequence.values, sequence.cached)

    def _resolve_draw(self, sequence: Sequence) -> None:
        for member in self.scheduler.fork(sequence) if sequence.unforked else [sequence]:
            assert isinstance(member.request, GenerateRequest)
            member.tokens.append(drawn(member.tokens, member.index))
            if member.drawn == member.request.max_tokens:
                self.scheduler.finish(member)
                member.ticket.finish_sample(member.index, member.sample("length"), member.cached)

    def check(self) -> None:
        """Every page holds in every layer what its sequence computed there, and the accounts balance."""
        size, layers = self.layout.page_size, self.layout.layers
        for sequence in self.scheduler.running:
            whole = len(sequence.pages) * size
            pages = self.rows[np.add.outer(sequence.pages, np.arange(layers))].reshape(-1, layers, size, self.width)
            held = pages.transpose(0, 2, 1, 3).reshape(whole, -1)[: sequence.computed]
            assert (held == np.array(sequence.tokens[: sequence.computed])[:, None]).all()
        self.memory.check_integrity([*self.scheduler.running, *self.scheduler.waiting])
        self._check_states()
        assert len(self.scheduler.running) <= self.scheduler.max_sequences


class Serving(RuleBasedStateMachine):
    """Requests to two models come, run, are cancelled and preempted, in memory that holds but a few of them."""

    # What the layers of either model keep besides.
    blocks: tuple[BlockLayout | None, BlockLayout | None] = (None, None)
    slabs = 5
    # The slabs that either may take.
    most: tuple[int | None, int | None] = (None, None)

    def __init__(self) -> None:
        super().__init__()
        budget = self.slabs * 576
        layouts = [layout for layout in (*LAYOUTS, *self.blocks) if layout is not None]
        self.arena = Arena(budget, slab_bytes(layouts, budget))
        self.reclaimer, self.group = Reclaimer(), SchedulerGroup()
        self.models = [self.model(0)]
        self.tickets: list[Ticket] = []
        self.texts: list[tuple[int, ...]] = [(1,)]

    def model(self, at: int) -> Fake:
        shared = (self.arena, self.reclaimer, self.group)
        return Fake("ab"[at], LAYOUTS[at], *shared, self.blocks[at], self.most[at])

    @precondition(lambda self: len(self.models) == 1)
    @rule()
    def add_late(self) -> None:
        assert self.group.free_slab(self.reclaimer)
        self.models.append(self.model(1))

    @rule(at=st.integers(0, 1), prompt=PROMPTS, samples=st.integers(1, 8), length=st.integers(1, 12), low=PRIORITIES)
    def generate(self, at: int, prompt: tuple[int, ...], samples: int, length: int, low: Priority) -> None:
        self.submit(at, GenerateRequest(prompt, tuple(range(samples)), SamplingParams(), length, priority=low))

    @rule(at=st.integers(0, 1), more=PROMPTS, low=PRIORITIES, data=st.data())
    def rescore(self, at: int, more: tuple[int, ...], low: Priority, data: st.DataObject) -> None:
        tokens = data.draw(st.sampled_from(self.texts)) + more
        positions = data.draw(st.sets(st.integers(0, len(tokens) - 1), min_size=1))
        self.submit(at, ReadRequest(tokens, tuple(sorted(positions)), (0,), priority=low))

    def submit(self, at: int, request: GenerateRequest | ReadRequest) -> None:
        ticket = self.models[at % len(self.models)].submit(request)
        if ticket is not None:
            self.tickets.append(ticket)

    @precondition(lambda self: any(not ticket.done for ticket in self.tickets))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from([ticket for ticket in self.tickets if not ticket.done]))
        ticket.cancel()
        self.tickets.remove(ticket)

    @precondition(lambda self: self.group.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        running = [(model.scheduler, sequence) for model in self.models for sequence in model.scheduler.running]
        scheduler, sequence = data.draw(st.sampled_from(running))
        scheduler.preempt(sequence)

    @rule(at=st.integers(0, 1), pages=st.integers(1, 6))
    def evict(self, at: int, pages: int) -> None:
        for _ in range(pages):
            self.models[at % len(self.models)].memory.tree.evict()

    @rule(turned=st.booleans())
    def step(self, turned: bool) -> None:
        working = [model for model in self.models[:: -1 if turned else 1] if model.scheduler.has_work]
        for model in working:
            refusals = model.scheduler.refusals
            chunks = model.scheduler.schedule()
            if chunks:
                model.compute(chunks)
            if chunks or model.scheduler.refusals > refusals:
                break
        else:
            assert not working, "no model got memory, and no request was refused"
        self.collect()

    def collect(self) -> None:
        """Checks what ended and keeps the texts, for others to go on from."""
        for ticket in [ticket for ticket in self.tickets if ticket.done]:
            self.tickets.remove(ticket)
            request = ticket.request
            try:
                samples = ticket.result().samples
            except EngineError:
                continue
            if not isinstance(request, GenerateRequest):
                continue
            for index, sample in enumerate(samples):
                tokens = list(request.prompt)
                while len(tokens) < len(request.prompt) + request.max_tokens:
                    tokens.append(drawn(tokens, index))
                assert sample.tokens == tuple(tokens[len(request.prompt) :])
                self.texts = [*self.texts[-7:], tuple(tokens)]

    @invariant()
    def pages_hold_what_their_sequences_computed(self) -> None:
        for model in self.models:
            model.check()
            leased = sum(len(self.arena.leased(owner)) for owner in (model.pool.owner, f"{model.pool.owner}: states"))
            assert leased == model.share.leased <= model.share.most
        self.arena.check_integrity()

    def teardown(self) -> None:
        """Whatever is open ends, in a bounded number of steps, and gives every page back."""
        for count in range(3000):
            if not any(model.scheduler.has_work for model in self.models):
                break
            self.step(count % 3 == 0)
            self.pages_hold_what_their_sequences_computed()
        assert not self.tickets
        for model in self.models:
            while model.memory.tree.evict():
                pass
            assert model.pool.held == 0 and model.memory.tree.tokens == 0
            assert model.blocks is None or model.blocks.held == 0
        assert self.arena.free == self.arena.slabs - len(self.models)


TestServing = Serving.TestCase
TestServing.settings = settings(max_examples=24, stateful_step_count=40)


class ServingStates(Serving):
    """The same where layers keep states: one model's block is as large as several pages, the other's is less than one.

    Both are evicted.
    """

    blocks = (BlockLayout(320), BlockLayout(128))
    slabs = 9

    @rule(at=st.integers(0, 1), count=st.integers(1, 4))
    def evict_states(self, at: int, count: int) -> None:
        states = self.models[at % len(self.models)].memory.states
        assert states is not None
        for _ in range(count):
            states.kept.evict()


class ServingShares(ServingStates):
    """The same where neither model may take all of the memory, and one of them little."""

    most = (4, 7)


TestServingShares = ServingShares.TestCase
TestServingShares.settings = settings(max_examples=12, stateful_step_count=40)
TestServingStates = ServingStates.TestCase
TestServingStates.settings = settings(max_examples=12, stateful_step_count=40)


def test_a_sequence_that_can_never_fit_is_refused_with_the_arithmetic() -> None:
    scheduler = Scheduler(memory_of(4, 4), max_sequences=4, token_budget=100)
    assert scheduler.too_large(12) is None
    reason = scheduler.too_large(20)
    assert reason is not None and "20 tokens needs 5 KV pages of 4, the budget is 3 pages" in reason
    request = GenerateRequest(tuple(range(12)), (0,), SamplingParams(), 5)
    ticket = Ticket(request, scheduler.cancel)
    sequence = Sequence.of(ticket, request)
    scheduler.add(sequence)
    scheduler.advance(scheduler.schedule())
    scheduler.fork(sequence)[0].tokens.append(1)
    assert scheduler.schedule() == []
    with pytest.raises(EngineError, match="13 tokens needs 4 KV pages of 4, the budget is 3 pages"):
        ticket.result()
    assert not scheduler.has_work


def cached(memory: KVCacheManager, *tokens: int) -> None:
    """Leaves the tokens in the prefix tree."""
    request = ReadRequest(tokens, (len(tokens) - 1,), (0,))
    sequence = Sequence.of(Ticket(request, lambda ticket: None), request)
    assert memory.attach(sequence, len(tokens), 0)
    assert memory.extend(sequence, sequence.missing) == sequence.missing
    sequence.computed = len(tokens)
    memory.retire(sequence)


def test_eviction_frees_the_least_recently_used_pages_first() -> None:
    memory = memory_of(7, 2)
    for first in (10, 20, 30):
        cached(memory, first, 1, 2, 3)
    memory.tree.match((10, 1, 2, 3), 4)
    assert memory.tree.evict() and memory.tree.evict()
    assert memory.tree.match((20, 1, 2, 3), 4).length == 0
    assert memory.tree.match((10, 1, 2, 3), 4).length == 4
    assert memory.tree.match((30, 1, 2, 3), 4).length == 4


def pair(slabs: int, flops: tuple[float, float]) -> tuple[KVCacheManager, KVCacheManager, Reclaimer]:
    """Two models with pages of one slab each, whose tokens cost `flops` to compute."""
    layout = KVLayout.equal(1, 2, 1, 1, torch.float32)
    arena, reclaimer = Arena(slabs * layout.page_bytes, layout.page_bytes), Reclaimer()
    memories = [
        KVCacheManager(PagePool(arena, name, layout), NoCopies(), cost, reclaimer)
        for name, cost in zip("ab", flops, strict=True)
    ]
    return memories[0], memories[1], reclaimer


def test_memory_moves_to_the_model_that_needs_it_least_recently_used_pages_first() -> None:
    a, b, _ = pair(8, (1.0, 1.0))
    for first in (10, 20, 30):
        cached(a, first, 1, 2, 3)
    a.tree.match((10, 1, 2, 3), 4)
    cached(b, 1, 2, 3, 4)
    assert [a.tree.match((first, 1, 2, 3), 4).length for first in (20, 10, 30)] == [0, 4, 4]
    assert b.tree.match((1, 2, 3, 4), 4).length == 4 and a.tree.evictions == 2


def test_what_costs_more_to_compute_again_stays_longer_and_not_for_ever() -> None:
    cheap, dear, _ = pair(8, (1.0, 3.5))
    cached(dear, 7, 7, 7, 7)
    for first in range(10, 16):
        cached(cheap, first, 1, 2, 3)
    assert dear.tree.match((7, 7), 0).length == 0 and dear.tree.evictions == 0
    for first in range(20, 30):
        cached(cheap, first, 1, 2, 3)
    assert dear.tree.evictions == 2


def test_pages_that_were_evicted_and_missed_soon_after_are_counted() -> None:
    memory = memory_of(5, 2)
    cached(memory, 1, 2, 3, 4)
    cached(memory, 5, 6, 7, 8, 9, 10)
    assert memory.tree.evictions == 1
    request = ReadRequest((1, 2, 3, 4, 5), (4,), (0,))
    sequence = Sequence.of(Ticket(request, lambda ticket: None), request)
    memory.prepare(sequence)
    assert memory.attach(sequence, 5, 0)
    assert sequence.computed == 2 and memory.tree.thrashed == 1


@given(st.lists(st.tuples(PROMPTS, st.sampled_from(["", "alice", "bob"])), min_size=1, max_size=12))
def test_an_owner_finds_only_what_was_computed_for_him(asked: list[tuple[tuple[int, ...], str]]) -> None:
    memory, alone = memory_of(200, 2), {owner: memory_of(200, 2) for owner in ("", "alice", "bob")}
    for prompt, owner in asked:
        found = []
        for one in (memory, alone[owner]):
            request = ReadRequest(prompt, (len(prompt) - 1,), (1,), client=Client(owner=owner))
            sequence = Sequence.of(Ticket(request, lambda ticket: None), request, 100)
            one.prepare(sequence)
            hinted = one.cached_pages(sequence)
            assert one.attach(sequence, len(prompt), 0)
            assert sequence.cached == sequence.ticket.cached == sequence.computed
            found.append((sequence.cached, hinted))
            assert one.extend(sequence, sequence.missing) == sequence.missing
            sequence.computed = len(prompt)
            one.retire(sequence)
            one.check_integrity([])
        assert found[0] == found[1]


def test_a_prefix_is_found_by_the_token() -> None:
    """Of a page that begins alike that part is copied, of several pages the one that is alike for longest."""
    memory = memory_of(12, 4)
    for rest in ((5, 6, 7, 8), (5, 6, 9, 9), (5, 1), (7, 7, 7, 7)):
        cached(memory, 1, 2, 3, 4, *rest)
    found = {
        (1, 2, 3, 4, 5, 6, 9, 1): 7,
        (1, 2, 3, 4, 5, 1, 9, 9): 6,
        (1, 2, 3, 4, 5, 6, 7, 8): 8,
        (1, 2, 3, 4, 6, 7, 7, 7): 4,
        (1, 2, 8, 8): 2,
        (2, 2, 3, 4): 0,
    }
    assert {tokens: memory.tree.match(tokens, len(tokens)).length for tokens in found} == found
    assert memory.tree.match((1, 2, 3, 4, 5, 6, 7, 8), 6).length == 6
    while memory.tree.evict():
        pass
    assert memory.tree.match((1, 2, 3, 4), 4).length == 0

"""Which blocks of states go first, and which are given up."""

from __future__ import annotations

import random

import torch

from qpdsl.executor.engine.memory.kv_cache import Arena, KVLayout, PagePool, Pool
from qpdsl.executor.engine.memory.prefix_tree import PrefixNode, PrefixTree, Reclaimer, Worth, WorthHeap
from qpdsl.executor.engine.memory.sequence import Sequence
from qpdsl.executor.engine.memory.state_blocks import BlockLayout, StateBlocks
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.executor.requests.ticket import Ticket

LAYOUT = KVLayout.equal(1, 4, 1, 8, torch.float32)


class Memory:
    """A tree of pages of four tokens, and blocks of states as large as a page, one a slab."""

    def __init__(self, slabs: int) -> None:
        arena, reclaimer = Arena(slabs * LAYOUT.page_bytes, LAYOUT.page_bytes), Reclaimer()
        self.pages = PagePool(arena, "m", LAYOUT)
        self.tree = PrefixTree(self.pages, 4, reclaimer.clock, 1.0)
        reclaimer.join(self.pages, self.tree)
        self.pool = Pool(arena, "m: states", BlockLayout(LAYOUT.page_bytes))
        self.states = StateBlocks(self.pool, self.tree, 4, reclaimer, 1.0, LAYOUT.token_bytes)

    def text(self, first: int, count: int) -> PrefixNode:
        """The last node of a text of so many tokens, which only the tree holds."""
        pages = [self.pages.take() for _ in range(count // 4)]
        node = self.tree.insert([*range(first, first + count)], pages)
        self.pages.release_all(pages)
        return node

    def keep(self, node: PrefixNode) -> int:
        """The block of states that a node keeps from now on."""
        block = self.pool.take()
        assert self.states.kept.keep(node, block)
        self.pool.release(block)
        return block


def test_a_block_that_is_used_again_goes_by_its_new_worth() -> None:
    memory = Memory(40)
    long, short, middle = memory.text(100, 40), memory.text(200, 4), memory.text(300, 12)
    first = memory.keep(long)
    memory.states.kept.forget(first)
    assert memory.keep(short) == first
    memory.keep(middle)
    assert memory.states.kept.evict()
    assert short.block is None and middle.block is not None


def test_states_that_others_hold_are_not_given_up_for_nothing() -> None:
    memory = Memory(4)
    node = memory.text(0, 4)
    block = memory.keep(node)
    memory.pages.retain(node.page)
    request = GenerateRequest((0, 1, 2, 3, 4), (1,), SamplingParams(1.0), 4)
    one, other = (Sequence.of(Ticket(request, lambda ticket: None), request, 100) for _ in range(2))
    for sequence in (one, other):
        memory.states.start(sequence, block, 4)
    while memory.pool.free:
        memory.pool.take()
    assert not memory.states.prepare(one) and len(memory.states.kept) == 1
    memory.states.drop(other)
    assert memory.states.prepare(one) and len(memory.states.kept) == 0


def test_a_heap_gives_the_least_whatever_was_done_before() -> None:
    chance, worths = random.Random(3), dict[int, Worth]()
    heap = WorthHeap(worths.get)
    for _ in range(3000):
        number = chance.randrange(20)
        if chance.random() < 0.3:
            worths.pop(number, None)
        elif number in worths and chance.random() < 0.5:
            # It may rise untold.
            worths[number] = (worths[number][0] + chance.randrange(5), 0)
        else:
            worths[number] = (float(chance.randrange(50)), 0)
            heap.push(number)
        least = min(((worth, one) for one, worth in worths.items()), default=None)
        found = heap.least()
        assert (found is None) == (least is None) and (found is None or least is None or found[0] == least[0])

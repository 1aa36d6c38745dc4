"""Blocks of states: which sequence holds which, and which nodes of the prefix tree keep one for others to go on from.

A state is the sum of all tokens so far, so a text can be gone on from only where the states after it were kept. Copies
cost nothing: a step leaves states in any block, so it is told another one, where the old is to stay. Kept are the
states

- at the end of a page where texts part: after the tokens that a sequence shares with others that wait, or with what is
  in the tree (Marconi's admission at branch points: Pan et al., 2025); and at the last one of each prompt,
- at the end of whatever was computed of a text that ends or is preempted, and at the last end of a page before that,
- every so many tokens of a long text (`spacing`).

They go as pages do (`prefix_tree.py`), by the cost of computing them again against their bytes, with their pages or
before them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qpdsl.executor.engine.memory.kv_cache import Pool
from qpdsl.executor.engine.memory.prefix_tree import (
    EvictionClock,
    PrefixNode,
    PrefixTree,
    Reclaimer,
    Worth,
    WorthHeap,
)
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.kernels.data.states import FRESH, StateSegment

# States that are kept at regular places take at most such a share of the bytes of keys and values, unless they would
# lie farther apart than so many tokens.
_SHARE = 4
_FARTHEST = 4096


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """A block as a pool sees it: a page of one row."""

    row_bytes: int

    @property
    def rows(self) -> int:
        return 1

    @property
    def page_bytes(self) -> int:
        return self.row_bytes


def spacing(block_bytes: int, token_bytes: int, page_size: int) -> int:
    """After how many tokens of a long text its states are kept, a multiple of the page size.

    Where no layer keeps keys and values, of which they could be a share, it is the farthest.
    """
    tokens = min(_FARTHEST, _SHARE * block_bytes // token_bytes)
    return max(1, tokens // page_size) * page_size


class KeptStates:
    """The states of nodes of a prefix tree: one reference to each block. `cost`: operations a token, for each byte.

    A node's states are worth the clock plus the cost of the tokens since the last node before it that has some.
    """

    def __init__(self, pool: Pool, tree: PrefixTree, clock: EvictionClock, cost: float) -> None:
        self._pool = pool
        self._tree = tree
        self._clock = clock
        self._cost = cost
        self._nodes: dict[int, PrefixNode] = {}
        self._worths: dict[int, Worth] = {}
        # Blocks that someone went on from.
        self._found: set[int] = set()
        self._unshared = WorthHeap(self._unshared_worth)
        pool.on_unshared = self._unshared.push
        tree.on_remove = self._forget

    def __len__(self) -> int:
        return len(self._nodes)

    def keep(self, node: PrefixNode, block: int) -> bool:
        """Has a node keep states; False where it has some, or is a root."""
        if node.parent is None or node.block is not None:
            return False
        before = node.parent
        while before.parent is not None and before.block is None:
            before = before.parent
        self._pool.retain(block)
        node.block, node.gain = block, self._cost * (node.end - before.end)
        self._nodes[block] = node
        self._touch(node)
        return True

    def find(self, block: int) -> None:
        """Notes that a sequence goes on from a block."""
        self._found.add(block)
        self._touch(self._nodes[block])

    def replace(self, node: PrefixNode) -> None:
        """Forgets a node's states, unless someone went on from them."""
        if node.block is not None and node.block not in self._found:
            self._forget(node)

    def forget(self, block: int) -> bool:
        """Gives a block up; False where no node has it."""
        node = self._nodes.get(block)
        if node is None:
            return False
        self._forget(node)
        return True

    def cheapest(self) -> Worth | None:
        """See `Evictable`."""
        found = self._unshared.least()
        return None if found is None else found[0]

    def evict(self) -> bool:
        """See `Evictable`."""
        found = self._unshared.least()
        if found is None:
            return False
        worth, block = found
        self._clock.now = max(self._clock.now, worth[0])
        self.evict_page(block)
        return True

    def worth(self, page: int) -> Worth | None:
        """See `Evictable`."""
        return self._worths.get(page)

    def evict_page(self, page: int) -> None:
        """See `Evictable`."""
        self.forget(page)

    @property
    def nodes(self) -> Mapping[int, PrefixNode]:
        """Those that have states, by their blocks."""
        return self._nodes

    def _forget(self, node: PrefixNode) -> None:
        block = node.block
        if block is None:
            return
        node.block, node.gain = None, 0.0
        del self._nodes[block], self._worths[block]
        self._found.discard(block)
        self._pool.release(block)

    def _touch(self, node: PrefixNode) -> None:
        assert node.block is not None
        self._tree.touch(node)
        self._worths[node.block] = (self._clock.now + node.gain, self._clock.touches)

    def _unshared_worth(self, block: int) -> Worth | None:
        """The worth of a block that only a node holds; None for any other."""
        return None if block not in self._nodes or self._pool.shared(block) else self._worths[block]


class StateBlocks:
    """The blocks of one model, and what its sequences hold of them.

    A running sequence needs one, and takes a second where the states before a step must stay.
    """

    def __init__(
        self, pool: Pool, tree: PrefixTree, page_size: int, reclaimer: Reclaimer, flops: float, token_bytes: int
    ) -> None:
        size = pool.layout.page_bytes
        self.pool = pool
        self.kept = KeptStates(pool, tree, reclaimer.clock, flops / size)
        self.spacing = spacing(size, token_bytes, page_size)
        self._page_size = page_size
        self._reclaimer = reclaimer
        reclaimer.join(pool, self.kept)

    @property
    def held_bytes(self) -> int:
        """Bytes of the blocks that sequences or the tree hold."""
        return self.pool.held * self.pool.layout.page_bytes

    def start(self, sequence: Sequence, block: int | None, seen: int) -> None:
        """Gives a sequence without states those of a block of the tree, after `seen` tokens; None for none."""
        own = sequence.states
        if block is not None:
            self.pool.retain(block)
            self.kept.find(block)
            own.block, own.seen = block, seen

    def prepare(self, sequence: Sequence, *, cold_only: bool = False) -> bool:
        """Makes sure of a block for the states after the next step; False where there is none to be had."""
        own = sequence.states
        if own.target is not None or (own.block != FRESH and not self.pool.shared(own.block)):
            return True
        if self._reclaimer.reserve(self.pool, 1, cold_only=cold_only):
            own.target = self.pool.take()
            return True
        return self._take_back(sequence)

    def stay(self, sequence: Sequence) -> bool:
        """Has a sequence do with one block, because it needs memory for pages; False where it does already, or cannot.

        What nodes keep of it is lost.
        """
        own = sequence.states
        if own.target is None or not self._take_back(sequence):
            return False
        self.pool.release(own.target)
        own.target = None
        return True

    def _take_back(self, sequence: Sequence) -> bool:
        """Takes a sequence's block from the tree, so that it can be written; False where others hold it too."""
        block = sequence.states.block
        # Its own reference, and that of the tree.
        return block != FRESH and self.pool.references(block) == 2 and self.kept.forget(block)

    def share(self, parent: Sequence, child: Sequence) -> None:
        """Lets a fork go on from its parent's states."""
        own, other = parent.states, child.states
        if own.block != FRESH:
            self.pool.retain(own.block)
        other.block, other.seen = own.block, own.seen

    def plan(self, chunk: Chunk, branches: Iterable[int]) -> None:
        """Sets the segments of a chunk. On the way the states are kept where memory allows.

        Others go on after so many of its tokens (`branches`).
        """
        sequence, own, size = chunk.sequence, chunk.sequence.states, self._page_size
        start, end = chunk.start, chunk.start + chunk.count
        marks: set[int] = set()
        if sequence.request.cached:
            marks = {at for at in (*branches, own.branch) if start < at <= end}
            marks |= {*range((start // self.spacing + 1) * self.spacing, end + 1, self.spacing)}
            last = end // size * size
            if start < last and end == len(sequence.tokens):
                marks.add(last)
        own.keeps = end in marks
        marks.discard(end)
        segments: list[StateSegment] = []
        source, done = own.block, start
        for at in sorted(marks):
            if not self._reclaimer.reserve(self.pool, 1):
                break
            block = self.pool.take()
            own.marks.append((at, block))
            segments.append(StateSegment(source, block, done - start, at - done))
            source, done = block, at
        target = own.block if own.target is None else own.target
        segments.append(StateSegment(source, target, done - start, end - done))
        chunk.segments = tuple(segments)

    def advance(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Moves a sequence to where its step has left its states; returns what is to be released after it was kept.

        That is after how many tokens, and in which block.
        """
        own = sequence.states
        if own.target is not None:
            if own.block != FRESH:
                self.pool.release(own.block)
            own.block, own.target = own.target, None
        own.seen = sequence.computed
        marks, own.marks = own.marks, []
        return marks

    def drop(self, sequence: Sequence) -> None:
        """Takes a sequence's blocks away."""
        own = sequence.states
        self.pool.release_all(own.held)
        own.block, own.seen, own.target, own.passed, own.branch = FRESH, 0, None, None, 0
        own.marks = []

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """AssertionError unless every block is owned exactly as often as its sequences and the tree say."""
        owners = Counter(self.kept.nodes.keys())
        for sequence in sequences:
            owners.update(sequence.states.held)
            assert sequence.states.seen == sequence.computed, "the states are those of other tokens"
        self.pool.check_integrity(owners)

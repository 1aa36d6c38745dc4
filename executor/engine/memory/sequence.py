"""One sequence of tokens in the engine: what is computed, and where its KV lies, and what is proposed to follow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from qpdsl.executor.engine.memory.prefix_tree import PrefixNode
from qpdsl.executor.kernels.data.states import FRESH, StateSegment
from qpdsl.executor.requests.drawing import Confidence, ConfidenceWindow, DrawFigures
from qpdsl.executor.requests.request import (
    Finish,
    GenerateRequest,
    Mask,
    Request,
    Sample,
    StepCounts,
    Values,
    Watch,
    Writer,
)
from qpdsl.executor.requests.routing import Arm
from qpdsl.executor.requests.ticket import Ticket

# A chunk reads weights once for all of its tokens: with more than these, putting their later layers off saves little.
_FEW_MISSING = 16


@dataclass(frozen=True, slots=True)
class Proposal:
    """Each token follows the one that `parents` names by its number, -1 for the last token of the sequence.

    Parents come before their children, and no two children of a parent are the same token. Without `parents`, each
    token follows the one before it.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.parents is not None:
            assert len(self.parents) == len(self.tokens), "every token needs a parent"
            assert all(-1 <= parent < index for index, parent in enumerate(self.parents)), "a parent comes first"
            assert len({*zip(self.parents, self.tokens, strict=True)}) == len(self.tokens), "children differ"

    @property
    def is_tree(self) -> bool:
        """Whether some token does not follow the one before it."""
        return self.parents is not None and self.parents != tuple(range(-1, len(self.tokens) - 1))

    @property
    def depths(self) -> list[int]:
        """How many proposed tokens stand before each on its path."""
        if self.parents is None:
            return [*range(len(self.tokens))]
        return [len(own) - 1 for own in self.ancestors]

    @property
    def paths(self) -> list[tuple[int, ...]]:
        """The tokens up to each of them on its path, itself included."""
        return [tuple(self.tokens[number] for number in own) for own in self.ancestors]

    @property
    def ancestors(self) -> list[tuple[int, ...]]:
        """The numbers of the tokens up to each of them on its path, itself included."""
        ancestors: list[tuple[int, ...]] = []
        for index in range(len(self.tokens)):
            parent = index - 1 if self.parents is None else self.parents[index]
            ancestors.append((index,) if parent < 0 else (*ancestors[parent], index))
        return ancestors

    def child(self, parent: int, token: int) -> int | None:
        """The number of this token behind `parent` (-1 for the last of the sequence); None where it is not here."""
        if self.parents is None:
            following = parent + 1
            return following if following < len(self.tokens) and self.tokens[following] == token else None
        pairs = zip(self.parents, self.tokens, strict=True)
        return next((number for number, pair in enumerate(pairs) if pair == (parent, token)), None)

    def goes_on(self, parent: int) -> bool:
        """Whether any token is proposed behind `parent` (-1 for the last of the sequence)."""
        return parent + 1 < len(self.tokens) if self.parents is None else parent in self.parents

    def pruned(self, kept: int) -> Proposal | None:
        """The first `kept` tokens, None for none: parents come first, so they are a proposal too."""
        if kept <= 0:
            return None
        if kept >= len(self.tokens):
            return self
        return Proposal(self.tokens[:kept], None if self.parents is None else self.parents[:kept])


class Rank(NamedTuple):
    """The place of a sequence among all of an engine: the least is served first.

    `priority`: see `Priority`. `urgency` is minus its owner's. `latest` is when it must run at the latest to be done by
    the owner's deadline, on the clock of `time.monotonic`: of all sequences the difference to now, their slack, is in
    the same order. It is infinite where there is no deadline, or one that has passed. Those alike in these go by
    `arrival`, the number of their request, and then by the `sample` of it that they are.
    """

    priority: int = 0
    urgency: float = 0
    latest: float = math.inf
    arrival: int = 0
    sample: int = 0

    @property
    def standing(self) -> tuple[int, float, float]:
        """What goes before the order of arrival."""
        return self[:3]


@dataclass(slots=True)
class SequenceStates:
    """The blocks that a sequence holds, where its model's layers keep states.

    `block` has those after its first `seen` tokens, which are those that are computed. Its next step leaves them in
    `target`, None for the same block, and on the way, after so many tokens, in the blocks of `marks`; with `keeps`,
    those that it ends with are kept too. The node `passed` has those at the last end of a page that it went through.
    Others are known to share its tokens up to `branch`.
    """

    block: int = FRESH
    seen: int = 0
    target: int | None = None
    marks: list[tuple[int, int]] = field(default_factory=list)
    keeps: bool = False
    passed: PrefixNode | None = None
    branch: int = 0

    @property
    def held(self) -> list[int]:
        """Each of them as often as it is held."""
        own = (self.block, FRESH if self.target is None else self.target, *(block for _, block in self.marks))
        return [block for block in own if block != FRESH]


@dataclass(eq=False, slots=True)
class Sequence:
    """`tokens[:computed]` have their KV in `pages`; the rest waits to be computed.

    Of `late` tokens behind those, the layers up to the request's exit are computed: `deferred` are their residuals
    after these, float32 [n, d] in turn, and `release` is told where they are not needed any more. Nobody else may see
    what their pages hold; who loses its pages forgets them.

    Where the request samples (`generates`), a prompt stands for `copies` samples of it, from number `index` on, until
    it is forked. A request that only reads is one sequence, whose `values` are those read so far, one tuple a position.
    Where it reads a `tree`, the tokens of that stand behind those of the `stem`, one place each.

    The scheduler fills `pages` and `computed`, the model runner appends `tokens`. Before a prompt is forked, tokens
    that must follow it (`jump`) stand behind it already, and its `mask` has taken them. In the next step `proposal` is
    computed behind the tokens; what of it is not drawn is computed over. A sequence that lost its pages (preempted)
    starts over with `computed` 0 and the tokens it had sampled: prefill and decode differ only in how many tokens are
    missing.

    `rank` orders all sequences of an engine, the first served first. Before it were admitted: `overtaken` younger ones
    of the same standing, because more of their prompts was cached, and while it was the oldest to wait `outranked` ones
    of a better standing. From `pressing` on its deadline may be missed unless it runs. `KVCacheManager` keeps the rest:
    tokens below `limit` may be written without asking it; `published` pages are in the prefix tree, the last of them at
    `node`; `digests` of the prompt's whole pages serve as hints. By `confidence` its next token must stand, and
    `window` has the draws that a floor goes by. It has waited for its next token since `since`, on the clock of
    `time.perf_counter`; `told` of its tokens have ended such waits. Of its last draw that tried an early exit,
    `last_exit` has the margin there, and whether the token stood.
    """

    ticket: Ticket
    request: Request
    tokens: list[int]
    index: int = 0
    copies: int = 1
    watch: Watch | None = None
    mask: Mask | None = None
    pages: list[int] = field(default_factory=list)
    states: SequenceStates = field(default_factory=SequenceStates)
    computed: int = 0
    logprob: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    figures: list[DrawFigures] = field(default_factory=list)
    near_ties: int = 0
    cached: int = 0
    admitted: bool = False
    rank: Rank = field(default=Rank())
    overtaken: int = 0
    outranked: int = 0
    pressing: float = math.inf
    limit: int = 0
    published: int = 0
    node: PrefixNode | None = None
    digests: list[int] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)
    proposal: Proposal | None = None
    forked: bool = False
    draws: int = 0
    rounds: int = 0
    forced: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    allowed: list[int] = field(default_factory=list)
    arms: dict[Arm, int] = field(default_factory=dict)
    tree: Proposal | None = None
    since: float = field(default_factory=time.perf_counter)
    told: int = 0
    confidence: Confidence | None = field(init=False, default=None)
    window: ConfidenceWindow | None = None
    deferred: list[np.ndarray[Any, np.dtype[np.float32]]] = field(default_factory=list)
    release: Callable[[Sequence], None] | None = None
    late: int = 0
    exits: int = 0
    refined: int = 0
    caught_up: int = 0
    skipped: int = 0
    shadowed: int = 0
    differed: int = 0
    full: int = 0
    written: list[tuple[int, Writer]] = field(default_factory=list)
    last_exit: tuple[float, bool] | None = None
    generates: bool = field(init=False)
    prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.generates = self.request.samples > 0
        self.prompt_length = len(self.request.tokens)
        if (drawn := self.request.generation) is not None:
            self.confidence = drawn.confidence
            self.since = self.since if drawn.since is None else drawn.since

    @classmethod
    def of(cls, ticket: Ticket, request: Request, room: int = 0) -> Sequence:
        """The sequence of a request that has just come, to a model with room for so many tokens behind its prompt."""
        sequence = cls(ticket, request, list(request.tokens), copies=max(1, request.samples))
        drawn = request.generation
        if drawn is not None and drawn.mask is not None:
            sequence.mask = drawn.mask()
            if drawn.jump:
                forced = sequence.mask.forced()[: min(drawn.max_tokens, room)]
                for token in forced:
                    sequence.mask.push(token)
                sequence.tokens += forced
        if request.tree is not None:
            sequence.tree = Proposal(*request.tree)
        return sequence

    @property
    def generation(self) -> GenerateRequest:
        """The request of a sequence that `generates`."""
        drawn = self.request.generation
        assert drawn is not None
        return drawn

    @property
    def stem(self) -> int:
        """How many of its tokens, the first ones, follow one another."""
        return len(self.tokens) - (0 if self.tree is None else len(self.tree.tokens))

    @property
    def reached(self) -> int:
        """How many of its tokens, the first ones, some layer has seen."""
        return self.computed + self.late

    @property
    def missing(self) -> int:
        """Tokens that no layer has seen yet; a sequence that decodes misses one."""
        return len(self.tokens) - self.computed - self.late

    @property
    def defers(self) -> bool:
        """Whether its next chunk runs the layers up to the exit alone: once it decodes, and nearly all is computed."""
        leave = self.request.exit
        if leave is None or not leave.deferred or not self.forked:
            return False
        return self.late > 0 or self.missing <= _FEW_MISSING

    def defer(self, residual: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        """Keeps the residuals [n, d] of its next tokens after the exit layer. What they are views of stays alive."""
        self.deferred.append(residual)
        self.late += len(residual)

    def forget_deferred(self) -> None:
        """Its late tokens are missing again."""
        if self.release is not None:
            self.release(self)
        self.deferred.clear()
        self.late = 0

    @property
    def drawn(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def cacheable(self) -> int:
        """How many leading tokens may come from the prefix cache: one at least must be computed to read anything."""
        return len(self.tokens) - 1 if self.generates else self.request.positions[0]

    @property
    def unforked(self) -> bool:
        """True for a prompt that has not been split into its samples yet."""
        return self.generates and not self.forked

    def fork(self, count: int) -> tuple[list[Sequence], Sequence | None]:
        """The next `count` samples of this prompt, itself the first, and a prompt for the rest where there is one.

        The samples have no pages yet, nor has the rest: the scheduler shares them. Watches and masks have taken no
        token: those that stand behind the prompt are for the model runner to append.
        """
        assert 1 <= count <= self.copies
        request = self.generation
        samples = [self, *(self._copy(self.index + offset, 1) for offset in range(1, count))]
        rest = self._copy(self.index + count, self.copies - count) if count < self.copies else None
        self.copies = 1
        for sample in samples:
            sample.computed, sample.forked = self.computed, True
            sample.watch = request.watch(sample.index) if request.watch else None
            sample.mask = request.mask() if request.mask else None
            sample.window = request.floor.follow() if request.floor else None
        return samples, rest

    def sample(self, finish: Finish) -> Sample:
        """What a sample has come to."""
        tokens = tuple(self.tokens[self.prompt_length :])
        counts = (self.draws, self.rounds, self.forced, self.drafted, self.accepted)
        exits = (self.exits, self.refined, self.caught_up, self.skipped)
        shadows = (self.shadowed, self.differed, self.full, tuple(self.written))
        arms = tuple(self.arms.items())
        steps = StepCounts(*counts, tuple(self.allowed), *exits, arms, self.rejected, *shadows)
        return Sample(
            tokens, finish, self.logprob, self.near_ties, self.watch, tuple(self.logprobs), steps, self.confidence,
            tuple(self.figures),
        )  # fmt: skip

    def _copy(self, index: int, copies: int) -> Sequence:
        copy = Sequence(self.ticket, self.request, list(self.tokens), index, copies, cached=self.cached)
        copy.admitted, copy.digests, copy.mask = True, self.digests, self.mask
        copy.rank, copy.pressing = self.rank._replace(sample=index), self.pressing
        copy.since = self.since
        return copy


class TreeRow(NamedTuple):
    """A row of a chunk that is a token of a tree.

    The tokens on its path in the tree, itself the last, have the positions from `start` on and lie at `places`; before
    that, places are positions.
    """

    row: int
    start: int
    places: tuple[int, ...]

    @property
    def position(self) -> int:
        return self.start + len(self.places) - 1


@dataclass(eq=False, slots=True)
class Chunk:
    """The next `count` tokens of a sequence, and behind its last one those of `proposal`.

    A `deferring` one has those behind its sequence's late ones: it runs the layers up to the exit alone.

    A chunk has a row for each of them. Proposed tokens have their keys and values in the places behind the sequence's
    own, in their order, and a position each by how many tokens stand before them on their path. Its `branches` are the
    rows after the first `straight` ones. Where layers keep states, its `segments` count rows from its own first one.
    """

    sequence: Sequence
    count: int
    proposal: Proposal | None = None
    deferring: bool = False
    segments: tuple[StateSegment, ...] = ()

    @property
    def start(self) -> int:
        """The place of its first token in the sequence."""
        return self.sequence.reached if self.deferring else self.sequence.computed

    @property
    def rows(self) -> int:
        return self.count if self.proposal is None else self.count + len(self.proposal.tokens)

    @property
    def straight(self) -> int:
        """How many of its rows, the first ones, follow one another."""
        sequence = self.sequence
        if sequence.tree is not None:
            return min(self.count, max(0, sequence.stem - self.start))
        return self.count if self.proposal is not None and self.proposal.is_tree else self.rows

    @property
    def branches(self) -> list[TreeRow]:
        """The rows that are tokens of a tree."""
        sequence, straight = self.sequence, self.straight
        tree = sequence.tree or self.proposal
        branches = self.rows - straight
        if tree is None or not branches:
            return []
        start = sequence.stem if sequence.tree is not None else self.start + self.count
        first = max(0, self.start - start)
        return [
            TreeRow(straight + index, start, tuple(start + number for number in ancestors))
            for index, ancestors in enumerate(tree.ancestors[first : first + branches])
        ]

    @property
    def tokens(self) -> list[int]:
        """Those of its rows."""
        start = self.start
        tokens = self.sequence.tokens[start : start + self.count]
        return tokens if self.proposal is None else [*tokens, *self.proposal.tokens]

    @property
    def positions(self) -> list[int]:
        """Those of its rows."""
        start = self.start
        return [*range(start, start + self.straight), *(branch.position for branch in self.branches)]

    @property
    def kept_rows(self) -> list[int]:
        """The rows whose hidden state a forward gives: those that are read, and all where drafts are made of them."""
        drawn = self.sequence.request.generation
        if drawn is not None and drawn.draft is not None and drawn.draft.shown:
            return [*range(self.rows)]
        return self.read_rows

    @property
    def read_rows(self) -> list[int]:
        """The rows whose hidden state is read: at the request's positions, or wherever a token may be drawn after."""
        sequence, start = self.sequence, self.start
        end = start + self.count
        if sequence.generates:
            return [*range(self.count - 1, self.rows)] if end == len(sequence.tokens) else []
        return [position - start for position in sequence.request.positions if start <= position < end]


def in_step(placed: Iterable[tuple[Chunk, int]]) -> tuple[StateSegment, ...]:
    """The segments of chunks, each with its first row in a step, by the rows of that."""
    return tuple(
        segment._replace(row=first + segment.row)
        for chunk, first in sorted(placed, key=lambda place: place[1])
        for segment in chunk.segments
    )


def are_draws(chunks: Iterable[Chunk]) -> bool:
    """Whether each chunk is one token, after which one is drawn. Asked of every row of most steps."""
    for chunk in chunks:
        sequence = chunk.sequence
        if chunk.count != 1 or chunk.proposal is not None or not sequence.generates:
            return False
        if len(sequence.tokens) - sequence.computed - sequence.late != 1:
            return False
    return True

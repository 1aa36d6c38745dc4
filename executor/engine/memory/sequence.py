"""One sequence of tokens in the engine: what is computed, and where its KV lies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qpdsl.executor.requests.request import Finish, GenerateRequest, Mask, Request, Sample, Watch
from qpdsl.executor.requests.ticket import Ticket

if TYPE_CHECKING:
    from qpdsl.executor.engine.memory.prefix_tree import Node
    from qpdsl.executor.requests.ticket import Ticket


@dataclass(eq=False, slots=True)
class Sequence:
    """`tokens[:computed]` have their KV in `pages`; the rest waits to be computed.

    A prompt stands for `copies` samples of its request, from number `index` on, until it is forked.

    The scheduler fills `pages` and `computed`, the engine appends `tokens`. A sequence that has lost its pages
    (preempted) starts over with `computed` 0 and the tokens it had sampled: prefill and decode differ only in how many
    tokens are missing.

    `rank` orders all sequences of an engine, the first served first: priority, number of arrival, index. `overtaken`
    counts the younger ones that were admitted before it. `Memory` keeps the rest: tokens below `limit` may be written
    without asking it; `published` pages are in the prefix tree, the last of them at `node`; `digests` of the prompt's
    whole pages serve as hints.
    """

    ticket: Ticket
    request: Request
    tokens: list[int]
    index: int = 0
    copies: int = 1
    watch: Watch | None = None
    mask: Mask | None = None
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    logprob: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    near_ties: int = 0
    cached: int = 0
    admitted: bool = False
    rank: tuple[int, int, int] = (0, 0, 0)
    overtaken: int = 0
    limit: int = 0
    published: int = 0
    node: Node | None = None
    digests: list[int] = field(default_factory=list)
    read: list[tuple[float, ...]] = field(default_factory=list)
    prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.prompt_length = len(request.prompt if isinstance(request, GenerateRequest) else request.tokens)

    @classmethod
    def of(cls, ticket: Ticket, request: Request) -> Sequence:
        if isinstance(request, GenerateRequest):
            return cls(ticket, request, list(request.prompt), copies=len(request.keys))
        return cls(ticket, request, list(request.tokens))

    @property
    def missing(self) -> int:
        """Tokens whose KV is still to be computed; a sequence that decodes misses one."""
        return len(self.tokens) - self.computed

    @property
    def drawn(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def cacheable(self) -> int:
        """How many leading tokens may come from the prefix cache: one at least must be computed to read anything."""
        if isinstance(self.request, GenerateRequest):
            return len(self.tokens) - 1
        return self.request.positions[0]

    @property
    def unforked(self) -> bool:
        """True for a prompt that has not been split into its samples yet."""
        return len(self.tokens) == self.prompt_length and isinstance(self.request, GenerateRequest)

    def fork(self, count: int) -> tuple[list[Sequence], Sequence | None]:
        """The next `count` samples of this prompt, itself the first, and a prompt for the rest where there is one.

        The samples have no pages yet, nor has the rest: the scheduler shares them.
        """
        assert isinstance(self.request, GenerateRequest) and 1 <= count <= self.copies

        def copy(index: int, copies: int) -> Sequence:
            made = Sequence(self.ticket, self.request, list(self.tokens), index, copies, cached=self.cached)
            made.admitted, made.digests = True, self.digests
            made.rank = (*self.rank[:2], index)
            return made

        samples = [self, *(copy(self.index + offset, 1) for offset in range(1, count))]
        rest = copy(self.index + count, self.copies - count) if count < self.copies else None
        self.copies = 1
        for sample in samples:
            sample.computed = self.computed
            sample.watch = self.request.watch(sample.index) if self.request.watch else None
            sample.mask = self.request.mask() if self.request.mask else None
        return samples, rest

    def sample(self, finish: Finish) -> Sample:
        drawn = tuple(self.tokens[self.prompt_length :])
        return Sample(drawn, finish, self.logprob, self.near_ties, self.watch, tuple(self.logprobs))


@dataclass(eq=False, slots=True)
class Chunk:
    """The next `count` tokens of a sequence."""

    sequence: Sequence
    count: int

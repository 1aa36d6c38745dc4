"""The drafters of one model, each made when a request first asks for one of its kind.

What every way to draft has in common: what it does, what the engine gives it, and proposals made of paths.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import torch

from qpdsl.executor.engine.draft.eagle_head import EagleHead
from qpdsl.executor.engine.draft.pace import DraftRecord, Pace
from qpdsl.executor.engine.memory.kv_cache_manager import KVCacheManager
from qpdsl.executor.engine.memory.sequence import Chunk, Proposal, Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step.backends import Hidden, StepBackend
from qpdsl.executor.requests.drawing import Drafting


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A model as the engine serves it: one step computes `token_budget` tokens at the most."""

    name: str
    model: PagedModel
    backend: StepBackend
    memory: KVCacheManager
    token_budget: int


class Exits(Protocol):
    """Where models can be left before their last layer."""

    def first_layers(self, name: str, model: PagedModel, head: str | None) -> tuple[int, Hidden | None]:
        """After how many layers the model of that name is left, by an exit head where one is named.

        And what makes hidden states of the residual there, None for the model's own last norm. Raises EngineError.
        """
        ...


@dataclass(frozen=True, slots=True)
class DraftHost:
    """What the engine has for a drafter of the model `target`.

    `served` gives another of its models, None where there is none of that name. `heads` draft, by their names. `exits`
    says where the model can be left early. A drafter that holds memory tells `lends` how it gives all of it back, False
    where it has none.
    """

    target: EngineModel
    served: Callable[[str], EngineModel | None]
    heads: Mapping[str, EagleHead]
    exits: Exits
    lends: Callable[[Callable[[], bool]], None]


class Drafter(ABC):
    """Proposes tokens for samples of one model, by the `method` that requests name.

    `shown`: it looks at the model's hidden states after the last norm, which its head reads.
    """

    method: ClassVar[str]
    shown: ClassVar[bool] = False

    @classmethod
    def of(cls, drafting: Drafting, host: DraftHost) -> Self:
        """The drafter for the model of `host`. Raises EngineError where nothing can draft so."""
        raise NotImplementedError

    @abstractmethod
    def propose(self, samples: Several[Sequence], lengths: Several[int]) -> list[Proposal | None]:
        """What may follow the tokens of each sample: at most so many one after the other, None for nothing."""

    def forget(self, sample: Sequence) -> None:  # noqa: B027
        """The sample has ended, was given up or has lost its pages."""

    def held(self, model: str) -> list[Sequence]:
        """The sequences of its own that hold pages of the model of this name."""
        return []

    def saw(self, chunk: Chunk, start: int, hidden: torch.Tensor) -> None:  # noqa: B027
        """A forward gave hidden states [rows, d] for a chunk, whose first row stands at position `start`."""

    def forked(self, prompt: Sequence, samples: Several[Sequence]) -> None:  # noqa: B027
        """A prompt that was seen is now these samples."""

    def accepted(self, sample: Sequence, nodes: Several[int]) -> None:  # noqa: B027
        """Of its proposal, the tokens of these numbers are now the sample's, one after the other."""


class Branching:
    """A tree that grows by paths: each token has at most `branches` that follow it, and there are `nodes` in all."""

    def __init__(self, branches: int, nodes: int) -> None:
        self._branches = branches
        self._nodes = nodes
        self._children: list[dict[int, int]] = [{}]
        self._tokens: list[int] = []
        self._parents: list[int] = []

    def add(self, parent: int, token: int) -> int | None:
        """The number of this token behind `parent` (-1 for the sample's last one); None where the tree is full."""
        children = self._children[parent + 1]
        number = children.get(token)
        if number is None and len(children) < self._branches and len(self._tokens) < self._nodes:
            number = children[token] = len(self._tokens)
            self._tokens.append(token)
            self._parents.append(parent)
            self._children.append({})
        return number

    @property
    def proposal(self) -> Proposal | None:
        """None for a tree without tokens. A tree that does not branch is a chain."""
        if not self._tokens:
            return None
        proposal = Proposal(tuple(self._tokens), tuple(self._parents))
        return proposal if proposal.is_tree else Proposal(proposal.tokens)


def joined(paths: Iterable[Several[int]], branches: int, nodes: int) -> Proposal | None:
    """The paths in one tree, those that come first before the others."""
    tree = Branching(branches, nodes)
    for path in paths:
        parent = -1
        for token in path:
            node = tree.add(parent, token)
            if node is None:
                break
            parent = node
    return tree.proposal


# A step in which a sample computes more of its own tokens than that says nothing of decode steps.
_MAX_MISSING = 16
# Where no drafts pay, only every so many steps are looked at, and measured.
_NAP = 7


class Drafters:
    """Asks the drafters that samples want; `make` builds one."""

    def __init__(self, make: Callable[[Drafting], Drafter], max_positions: int) -> None:
        self._make = make
        self._max_positions = max_positions
        self._drafters: dict[Drafting, Drafter] = {}
        self._looking: dict[Drafting, Drafter] = {}
        self._pace = Pace()
        # So many steps nothing is looked at, where no drafts pay.
        self._asleep = 0
        # Drafted tokens that were right in the present step.
        self._right = 0

    def prepare(self, drafting: Drafting) -> Drafting:
        """Makes a drafter where there is none of the kind. Raises what `make` raises.

        Returns the drafting with whether its drafter is shown hidden states.
        """
        if drafting not in self._drafters:
            drafter = self._drafters[drafting] = self._make(drafting)
            if drafter.shown:
                self._looking[drafting] = drafter
        return replace(drafting, shown=True) if drafting in self._looking else drafting

    def propose(self, samples: Several[Sequence]) -> None:
        """Gives the samples that want drafts, and have none, their proposals, without what their masks forbid."""
        if not self._drafters:
            return
        if self._asleep:
            self._asleep -= 1
            return
        stages: dict[DraftRecord, list[Sequence]] = {}
        drafted = not self._pace.times.knows(len(samples))
        for sample in samples:
            if sample.forked and sample.proposal is None and sample.generation.draft is not None:
                stages.setdefault(self._pace.stage(sample), []).append(sample)
        for stage, own in stages.items():
            drafting = stage.drafting
            if drafting.fixed or self._pace.may_draft(stage, len(samples)):
                rooms = [min(drafting.length, self._room(sample)) for sample in own]
                lengths = rooms if drafting.fixed else self._pace.lengths(stage, own, rooms, len(samples))
                if drafting.fixed or any(lengths):
                    drafted = True
                    self._propose(stage, own, lengths)
        self._asleep = 0 if drafted else _NAP

    @property
    def looking(self) -> bool:
        """Whether a drafter looks at hidden states."""
        return bool(self._looking)

    def ran(self, chunks: Several[Chunk], seconds: float) -> None:
        """A step of these chunks took so long, what was drawn in it included."""
        if not self._drafters or self._asleep:
            return
        right, self._right = self._right, 0
        if all(chunk.sequence.forked and chunk.count <= _MAX_MISSING for chunk in chunks):
            rows = len(chunks) + sum(len(chunk.proposal.tokens) for chunk in chunks if chunk.proposal is not None)
            self._pace.ran([chunk.sequence for chunk in chunks], len(chunks) + right, rows, seconds)

    def saw(self, chunk: Chunk, start: int, hidden: torch.Tensor) -> None:
        """See `Drafter`."""
        if (drafter := self._looking_for(chunk.sequence)) is not None:
            drafter.saw(chunk, start, hidden)

    def forked(self, prompt: Sequence, samples: Several[Sequence]) -> None:
        """See `Drafter`."""
        if (drafter := self._looking_for(prompt)) is not None:
            drafter.forked(prompt, samples)

    def checked(self, sample: Sequence, proposal: Proposal, nodes: Several[int]) -> None:
        """The tokens `nodes` of what was proposed for a sample are now its own, and no other."""
        if (drafter := self._looking_for(sample)) is not None:
            drafter.accepted(sample, nodes)
        self._right += len(nodes)
        # The token after the last right one was wrong, where there was one.
        more = proposal.goes_on(nodes[-1] if nodes else -1)
        self._pace.checked(sample, len(nodes), len(nodes) + more)

    def held(self, model: str) -> list[Sequence]:
        """The sequences of the drafters that hold pages of the model of this name."""
        return [sequence for drafter in self._drafters.values() for sequence in drafter.held(model)]

    def forget(self, sample: Sequence) -> None:
        """See `Drafter`."""
        for drafter in self._drafters.values():
            drafter.forget(sample)
        self._pace.forget(sample)

    def _propose(self, stage: DraftRecord, samples: list[Sequence], lengths: list[int]) -> None:
        start = time.perf_counter()
        proposals = self._drafters[stage.drafting].propose(samples, lengths)
        for sample, proposal in zip(samples, proposals, strict=True):
            sample.proposal = None if proposal is None else _admitted(sample, proposal)
        self._pace.drafted(stage, samples, lengths, time.perf_counter() - start)

    def _looking_for(self, sequence: Sequence) -> Drafter | None:
        """The drafter of a sequence, where it looks at hidden states."""
        if not self._looking or not sequence.generates or (drafting := sequence.generation.draft) is None:
            return None
        return self._looking.get(drafting)

    def _room(self, sample: Sequence) -> int:
        """How many tokens may follow, but for the one that is drawn after them."""
        left = sample.generation.max_tokens - sample.drawn
        return max(0, min(left, self._max_positions - len(sample.tokens)) - 1)


def _admitted(sample: Sequence, proposal: Proposal) -> Proposal | None:
    """What the sample's mask admits of a proposal."""
    mask = sample.mask
    if mask is None:
        return proposal
    if proposal.parents is None:
        return proposal.pruned(mask.admits(proposal.tokens))
    places: dict[int, int] = {-1: -1}
    tokens: list[int] = []
    parents: list[int] = []
    for number, (path, parent) in enumerate(zip(proposal.paths, proposal.parents, strict=True)):
        if parent in places and mask.admits(path) == len(path):
            places[number] = len(tokens)
            tokens.append(path[-1])
            parents.append(places[parent])
    return Proposal(tuple(tokens), tuple(parents)) if tokens else None

"""The drafters of one model, each made when a request first asks for one of its kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Several

import torch

from qpdsl.executor.engine.draft.drafter import Drafter, FeatureDrafter
from qpdsl.executor.engine.draft.pace import Pace, Stage
from qpdsl.executor.engine.memory.proposal import Proposal
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.requests.drafting import Drafting

# A step in which a sample computes more of its own tokens than that says nothing of decode steps.
_MOST_MISSING = 16
# Where no drafts pay, only every so many steps are looked at, and measured.
_NAP = 7


class Drafters:
    """Asks the drafters that samples want; `make` builds one."""

    def __init__(self, make: Callable[[Drafting], Drafter], max_positions: int) -> None:
        self._make = make
        self._max_positions = max_positions
        self._drafters: dict[Drafting, Drafter] = {}
        self._looking: dict[Drafting, FeatureDrafter] = {}
        self._pace = Pace()
        # So many steps nothing is looked at, where no drafts pay.
        self._asleep = 0
        # Drafted tokens that were right in the present step.
        self._right = 0

    def prepare(self, drafting: Drafting) -> None:
        """Makes a drafter where there is none of the kind. Raises what `make` raises."""
        if drafting not in self._drafters:
            drafter = self._drafters[drafting] = self._make(drafting)
            if isinstance(drafter, FeatureDrafter):
                self._looking[drafting] = drafter

    def propose(self, samples: Several[Sequence]) -> None:
        """Gives the samples that want drafts, and have none, their proposals, without what their masks forbid."""
        if not self._drafters:
            return
        if self._asleep:
            self._asleep -= 1
            return
        stages: dict[Stage, list[Sequence]] = {}
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
        if all(chunk.sequence.forked and chunk.count <= _MOST_MISSING for chunk in chunks):
            rows = len(chunks) + sum(len(chunk.proposal.tokens) for chunk in chunks if chunk.proposal is not None)
            self._pace.ran([chunk.sequence for chunk in chunks], len(chunks) + right, rows, seconds)

    def saw(self, chunk: Chunk, start: int, hidden: torch.Tensor) -> None:
        """See `FeatureDrafter`."""
        if (drafter := self._looking_for(chunk.sequence)) is not None:
            drafter.saw(chunk, start, hidden)

    def forked(self, prompt: Sequence, samples: Several[Sequence]) -> None:
        """See `FeatureDrafter`."""
        if (drafter := self._looking_for(prompt)) is not None:
            drafter.forked(prompt, samples)

    def checked(self, sample: Sequence, proposal: Proposal, nodes: Several[int]) -> None:
        """The tokens `nodes` of what was proposed for a sample are now its own, and no other."""
        if (drafter := self._looking_for(sample)) is not None:
            drafter.accepted(sample, nodes)
        self._right += len(nodes)
        # The token after the last right one was wrong, where there was one.
        last = nodes[-1] if nodes else -1
        parents = proposal.parents
        more = last + 1 < len(proposal.tokens) if parents is None else last in parents
        self._pace.checked(sample, len(nodes), len(nodes) + more)

    def forget(self, sample: Sequence) -> None:
        """See `Drafter`."""
        for drafter in self._drafters.values():
            drafter.forget(sample)
        self._pace.forget(sample)

    def _propose(self, stage: Stage, samples: list[Sequence], lengths: list[int]) -> None:
        start = time.perf_counter()
        proposals = self._drafters[stage.drafting].propose(samples, lengths)
        for sample, proposal in zip(samples, proposals, strict=True):
            sample.proposal = None if proposal is None else _admitted(sample, proposal)
        self._pace.drafted(stage, samples, lengths, time.perf_counter() - start)

    def _looking_for(self, sequence: Sequence) -> FeatureDrafter | None:
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

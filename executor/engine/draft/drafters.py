"""The drafters of one model, each made when a request first asks for it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several

from qpdsl.executor.engine.draft.drafter import Drafter
from qpdsl.executor.engine.memory.proposal import Proposal
from qpdsl.executor.engine.memory.sequence import Sequence
from qpdsl.executor.requests.drafting import Drafting


class Drafters:
    """Asks the drafters that samples want; `make` builds one."""

    def __init__(self, make: Callable[[Drafting], Drafter], max_positions: int) -> None:
        self._make = make
        self._max_positions = max_positions
        self._drafters: dict[Drafting, Drafter] = {}

    def propose(self, samples: Several[Sequence]) -> None:
        """Gives the samples that want drafts, and have none, their proposals, without what their masks forbid."""
        by_drafting: dict[Drafting, list[Sequence]] = {}
        for sample in samples:
            if sample.forked and sample.proposal is None and (drafting := sample.generation.draft) is not None:
                by_drafting.setdefault(drafting, []).append(sample)
        for drafting, own in by_drafting.items():
            drafter = self._drafters.get(drafting)
            if drafter is None:
                drafter = self._drafters[drafting] = self._make(drafting)
            lengths = [min(drafting.length, self._room(sample)) for sample in own]
            for sample, proposal in zip(own, drafter.propose(own, lengths), strict=True):
                sample.proposal = None if proposal is None else _admitted(sample, proposal)

    def forget(self, sample: Sequence) -> None:
        """See `Drafter`."""
        for drafter in self._drafters.values():
            drafter.forget(sample)

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

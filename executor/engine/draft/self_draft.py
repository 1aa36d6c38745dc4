"""Drafts by the first layers of the model itself and its head (as LayerSkip does: Elhoushi et al., 2024).

They are read as the last ones are, or through an exit head (`qpdsl calibrate`) after its layer. What these layers
compute is the KV that the whole model has there. It is computed once more when the draft is checked.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from functools import partial

from qpdsl.executor.engine.draft.rollout import Ahead, Rollout, computed_ahead
from qpdsl.executor.engine.memory.kv_cache_manager import KVCacheManager
from qpdsl.executor.engine.memory.proposal import Proposal
from qpdsl.executor.engine.memory.sequence import Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step.backends import Hidden, NativeBackend
from qpdsl.executor.requests.drafting import Drafting

# A sample that has more of its own tokens to compute gets no draft.
_MOST_MISSING = 16


class SelfDrafter:
    """Draws ahead after `layer` layers, in the pages of the samples themselves, behind what they have computed.

    `hidden_of`: see `NativeBackend.first_layers`.
    """

    def __init__(
        self,
        drafting: Drafting,
        model: PagedModel,
        backend: NativeBackend,
        memory: KVCacheManager,
        layer: int,
        hidden_of: Hidden | None = None,
    ) -> None:
        self._drafting = drafting
        self._memory = memory
        first_layers = partial(backend.first_layers, depth=layer, hidden_of=hidden_of)
        self._rollout = Rollout(model, first_layers, backend.readout)

    def propose(self, samples: Several[Sequence], lengths: Several[int]) -> list[Proposal | None]:
        """See `Drafter`."""
        drafts: dict[Sequence, Ahead] = {}
        for sample, length in zip(samples, lengths, strict=True):
            if length > 0 and sample.missing <= _MOST_MISSING:
                draft = self._ahead(sample, length)
                if draft is not None:
                    drafts[sample] = draft
        if self._drafting.branches > 1:
            self._rollout.trees([*drafts.values()], self._drafting.branches)
        else:
            self._rollout.chains([*drafts.values()])
        return [drafts[sample].proposal if sample in drafts else None for sample in samples]

    def forget(self, sample: Sequence) -> None:
        """See `Drafter`. Nothing is kept between rounds."""

    def _ahead(self, sample: Sequence, length: int) -> Ahead | None:
        """A draft with room for what it computes; None where there is not enough."""
        drafting, own = self._drafting, sample.missing
        needed = own + computed_ahead(length, drafting.branches)
        if sample.computed + needed > sample.limit:
            room = self._memory.extend(sample, needed, cold_only=True)
            if room < own or (room < needed and drafting.branches > 1):
                return None
            length = min(length, room - own + 1)
        stand_in = Sequence(sample.ticket, sample.request, list(sample.tokens), sample.index)
        stand_in.pages, stand_in.computed = sample.pages, sample.computed
        most = drafting.nodes if drafting.branches > 1 else length
        return Ahead.of(sample, stand_in, length, drafting.branches, most)

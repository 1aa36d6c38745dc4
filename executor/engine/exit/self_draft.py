"""Drafts by the first layers of the model itself and its head (as LayerSkip does: Elhoushi et al., 2024).

They are read as the last ones are, or through an exit head (`qpdsl calibrate`) after its layer. What these layers
compute is the KV that the whole model has there. It is computed once more when the draft is checked.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from functools import partial
from typing import Self

from qpdsl.executor.engine.draft.drafters import Drafter, DraftHost, EngineModel
from qpdsl.executor.engine.draft.rollout import MAX_MISSING, Ahead, Rollout, computed_ahead, stand_in
from qpdsl.executor.engine.memory.sequence import Proposal, Sequence
from qpdsl.executor.engine.step.backends import Hidden, NativeBackend
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.errors import EngineError


class SelfDrafter(Drafter):
    """Draws ahead after `layer` layers, in the pages of the samples themselves, behind what they have computed.

    `hidden_of`: see `NativeBackend.first_layers`.
    """

    method = "early_exit"

    def __init__(
        self, drafting: Drafting, own: EngineModel, backend: NativeBackend, layer: int, hidden_of: Hidden | None = None
    ) -> None:
        self._drafting = drafting
        self._memory = own.memory
        first_layers = partial(backend.first_layers, depth=layer, hidden_of=hidden_of)
        self._rollout = Rollout(own.model, first_layers, backend.readout)

    @classmethod
    def of(cls, drafting: Drafting, host: DraftHost) -> Self:
        """See `Drafter`."""
        own = host.target
        if not isinstance(own.backend, NativeBackend) or not own.model.runs_in_part:
            raise EngineError(f"{own.name} cannot draft with its first layers: its layers are not compiled ones")
        return cls(drafting, own, own.backend, *host.exits.first_layers(own.name, own.model, drafting.model))

    def propose(self, samples: Several[Sequence], lengths: Several[int]) -> list[Proposal | None]:
        """See `Drafter`."""
        drafts: dict[Sequence, Ahead] = {}
        for sample, length in zip(samples, lengths, strict=True):
            if length > 0 and sample.missing <= MAX_MISSING:
                draft = self._ahead(sample, length)
                if draft is not None:
                    drafts[sample] = draft
        return self._rollout.proposals(samples, drafts, self._drafting.branches)

    def _ahead(self, sample: Sequence, length: int) -> Ahead | None:
        """A draft with room for what it computes; None where there is not enough."""
        drafting, own = self._drafting, sample.missing
        needed = own + computed_ahead(length, drafting.branches)
        if sample.computed + needed > sample.limit:
            room = self._memory.extend(sample, needed, cold_only=True)
            if room < own or (room < needed and drafting.branches > 1):
                return None
            length = min(length, room - own + 1)
        sequence = stand_in(sample)
        sequence.pages, sequence.computed = sample.pages, sample.computed
        return Ahead.of(sample, sequence, length, drafting)

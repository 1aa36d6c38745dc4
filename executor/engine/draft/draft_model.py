"""Drafts by another model of the engine, which has the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Self

from qpdsl.executor.engine.batch.staging import working_on
from qpdsl.executor.engine.draft.drafters import Drafter, DraftHost, EngineModel
from qpdsl.executor.engine.draft.rollout import Ahead, Rollout, computed_ahead, stand_in
from qpdsl.executor.engine.memory.sequence import Chunk, Proposal, Sequence
from qpdsl.executor.engine.step.backends import ForwardOutput
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.errors import EngineError

# Rounds without new drafts after real work needed the memory.
_PAUSE = 64


class ModelDrafter(Drafter):
    """The model follows each sample with a mirror of it, a sequence of its own, and draws ahead with its noise.

    Mirrors take memory that is free or cold, and give it all back where a sequence needs some (`give_back`). What a
    mirror has computed goes into the model's prefix tree, so samples of one prompt share it. At most `token_budget`
    tokens are caught up with in one step.
    """

    method = "model"

    def __init__(self, drafting: Drafting, own: EngineModel) -> None:
        self._drafting = drafting
        self._name = own.name
        self._model = own.model
        self._backend = own.backend
        self._memory = own.memory
        self._token_budget = own.token_budget
        self._rollout = Rollout(own.model, self._forward, own.backend.readout, self._publish)
        self._mirrors: dict[Sequence, Sequence] = {}
        # How many of a mirror's tokens, the first ones, are known to be its sample's.
        self._agreed: dict[Sequence, int] = {}
        self._pause = 0

    @classmethod
    def of(cls, drafting: Drafting, host: DraftHost) -> Self:
        """See `Drafter`."""
        name, other, target = host.target.name, drafting.model, host.target.model
        served = None if other is None else host.served(other)
        if served is None:
            raise EngineError(f"{other} is to draft for {name}, and there is no such model")
        if (inability := served.model.capabilities.refusal({"sampling"})) is not None:
            raise EngineError(f"{other} cannot draft for {name}: it {inability}")
        if served.model.states is not None:
            raise EngineError(f"{other} cannot draft for {name}: its layers keep states, which take no token back")
        if (width := served.model.head.width) != (own := target.head.width):
            reason = f"its vocabulary is another, of {width:,} ids and not {own:,}"
            raise EngineError(f"{other} cannot draft for {name}: {reason}")
        drafter = cls(drafting, served)
        host.lends(drafter.give_back)
        return drafter

    def held(self, model: str) -> list[Sequence]:
        """See `Drafter`."""
        return [*self._mirrors.values()] if model == self._name else []

    def propose(self, samples: Several[Sequence], lengths: Several[int]) -> list[Proposal | None]:
        """See `Drafter`."""
        self._pause = max(0, self._pause - 1)
        self._budget = self._token_budget
        drafts: dict[Sequence, Ahead] = {}
        behind: list[Chunk] = []
        # A prompt is computed for one of its samples, and found by the others in the next round.
        starting: set[tuple[str, tuple[int, ...]]] = set()
        for sample, length in zip(samples, lengths, strict=True):
            length = min(length, self._model.max_positions - len(sample.tokens))
            mirror = self._mirror(sample, starting) if length > 0 else None
            if mirror is None:
                continue
            count = self._caught_up(mirror)
            if 0 < count < mirror.missing:
                behind.append(Chunk(mirror, count))
            elif count and (draft := self._ahead(sample, mirror, length)) is not None:
                drafts[sample] = draft
        with working_on(self._model.device):
            if behind:
                self._forward(behind)
                for chunk in behind:
                    chunk.sequence.computed += chunk.count
                    self._publish(chunk.sequence)
            return self._rollout.proposals(samples, drafts, self._drafting.branches)

    def forget(self, sample: Sequence) -> None:
        """See `Drafter`."""
        mirror = self._mirrors.pop(sample, None)
        if mirror is not None:
            del self._agreed[mirror]
            self._memory.retire(mirror)

    def give_back(self) -> bool:
        """Frees all pages, for a sequence that needs some; False where there were none."""
        mirrors = [*self._mirrors.values()]
        for mirror in mirrors:
            self._memory.drop(mirror)
        self._mirrors.clear()
        self._agreed.clear()
        self._pause = _PAUSE
        return bool(mirrors)

    def _forward(self, chunks: list[Chunk]) -> ForwardOutput:
        return self._backend.forward(chunks)

    def _mirror(self, sample: Sequence, starting: set[tuple[str, tuple[int, ...]]]) -> Sequence | None:
        """The mirror of a sample with the sample's tokens; None where it must wait, or there is no memory."""
        mirror = self._mirrors.get(sample)
        if mirror is None:
            prompt = sample.request.client.owner, sample.generation.prompt
            if self._pause or (prompt in starting and sample.request.cached):
                return None
            mirror = stand_in(sample)
            mirror.admitted = True
            if not self._memory.attach(mirror, mirror.missing, len(self._mirrors), cold_only=True):
                return None
            if len(prompt[1]) - mirror.computed > self._memory.page_size:
                starting.add(prompt)
            self._mirrors[sample] = mirror
            self._agreed[mirror] = len(sample.tokens)
            return mirror
        same, most = self._agreed[mirror], min(len(mirror.tokens), len(sample.tokens))
        while same < most and mirror.tokens[same] == sample.tokens[same]:
            same += 1
        mirror.tokens[same:] = sample.tokens[same:]
        mirror.computed = min(mirror.computed, same, len(sample.tokens) - 1)
        self._agreed[mirror] = len(sample.tokens)
        return mirror

    def _caught_up(self, mirror: Sequence) -> int:
        """How many of the tokens that a mirror has not seen it may compute now, with room for them."""
        count = min(mirror.missing, self._budget)
        if count and mirror.computed + count > mirror.limit:
            count = max(0, min(count, self._memory.extend(mirror, count, cold_only=True)))
        self._budget -= count
        return count

    def _ahead(self, sample: Sequence, mirror: Sequence, length: int) -> Ahead | None:
        """A draft with room for what it computes; None where there is not enough."""
        drafting, own = self._drafting, mirror.missing
        nodes = computed_ahead(length, drafting.branches)
        if nodes and mirror.computed + own + nodes > mirror.limit:
            room = self._memory.extend(mirror, own + nodes, cold_only=True) - own
            if room < nodes and drafting.branches > 1:
                return None
            length = min(length, max(room, 0) + 1)
        return Ahead.of(sample, mirror, length, drafting)

    def _publish(self, mirror: Sequence) -> None:
        """Lets others find what is computed, but for the last token, which may be computed again."""
        mirror.computed -= 1
        self._memory.publish(mirror)
        mirror.computed += 1

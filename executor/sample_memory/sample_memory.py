"""The samples that are remembered, those that are being drawn, and how many were shared."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from qpdsl.executor.requests.request import GenerateRequest, Sample
from qpdsl.executor.sample_memory.kept_sample import DrawCost, KeptSample
from qpdsl.executor.sample_memory.sample_source import SampleSource
from qpdsl.executor.sample_memory.shared_draw import Place, SampleUnderWay

# Some 20 million tokens.
MOST_BYTES = 256 << 20


@dataclass(slots=True)
class ShareTotals:
    """What requests got so far: `samples` with `tokens`, of which `shared_samples` with `saved_tokens` were not drawn
    for them.
    """

    samples: int = 0
    tokens: int = 0
    shared_samples: int = 0
    saved_tokens: int = 0


@dataclass(slots=True)
class _Prompt:
    """The samples of one source, by noise key, and by `max_tokens` too where that ended them, else 0."""

    bytes: int
    kept: dict[tuple[int, int], KeptSample] = field(default_factory=dict)


class SampleMemory:
    """Remembers samples by all that they depend on. In `most_bytes`, those of the prompts that were used last.

    `totals` tells what was shared. With `charges_again` a ticket counts its shared samples, and the seconds that they
    took when they were drawn, as if they had been drawn for it; without, it tells nothing of them. `under_way` are the
    samples that engines draw now, for others to join.
    """

    def __init__(self, most_bytes: int = MOST_BYTES, *, charges_again: bool = True) -> None:
        self.totals = ShareTotals()
        self.charges_again = charges_again
        self.under_way: dict[Place, SampleUnderWay] = {}
        self._most_bytes = most_bytes
        self._prompts: OrderedDict[SampleSource, _Prompt] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """About so much memory the remembered samples take."""
        return self._bytes

    @property
    def samples(self) -> int:
        """How many samples are remembered."""
        return sum(len(prompt.kept) for prompt in self._prompts.values())

    def get(self, source: SampleSource, key: int, request: GenerateRequest) -> KeptSample | None:
        """The remembered sample that a request from this source would get under a key; None where there is none."""
        prompt = self._used(source)
        if prompt is not None:
            for bound in (0, request.max_tokens):
                kept = prompt.kept.get((key, bound))
                if kept is not None and kept.does_for(request):
                    return kept
        return None

    def longer(self, source: SampleSource, key: int, request: GenerateRequest) -> KeptSample | None:
        """A remembered sample of which that one is the beginning; None where there is none."""
        prompt = self._used(source.unwatched)
        kept = None if prompt is None else prompt.kept.get((key, 0))
        return kept if kept is not None and kept.begins_for(request) else None

    def _used(self, source: SampleSource) -> _Prompt | None:
        prompt = self._prompts.get(source)
        if prompt is not None:
            self._prompts.move_to_end(source)
        return prompt

    def put(self, source: SampleSource, key: int, request: GenerateRequest, sample: Sample, cost: DrawCost) -> None:
        """Remembers a sample that a request from this source got under a key."""
        kept = KeptSample.of(sample, request, cost)
        prompt = self._prompts.get(source)
        if prompt is None:
            prompt = self._prompts[source] = _Prompt(source.bytes)
            self._bytes += prompt.bytes
        self._prompts.move_to_end(source)
        place = (key, request.max_tokens if sample.finish == "length" else 0)
        before = prompt.kept.get(place)
        more = kept.bytes - (0 if before is None else before.bytes)
        prompt.kept[place] = kept
        prompt.bytes += more
        self._bytes += more
        while self._bytes > self._most_bytes:
            _, oldest = self._prompts.popitem(last=False)
            self._bytes -= oldest.bytes

    def forget(self) -> None:
        """Forgets all remembered samples. Those that are being drawn come to whoever waits for them."""
        self._prompts.clear()
        self._bytes = 0

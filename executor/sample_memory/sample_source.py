"""What a sample is drawn from: everything that its tokens, and the accounts of how they came about, depend on."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from qpdsl.executor.requests.confidence import Confidence
from qpdsl.executor.requests.drafting import Drafting
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.request import Constraint, GenerateRequest, SamplingParams
from qpdsl.executor.requests.routing import Routing

# Of a token in a tuple: the reference, and mostly an object of its own.
_TOKEN_BYTES = 36


@dataclass(frozen=True, slots=True)
class SampleSource:
    """All that a sample depends on but its noise key and its `max_tokens`.

    `ended_by` and `constraint` stand for the watch and the mask. `jump`, `draft` and `route` change no token, but the
    counts of the steps. What is not here changes neither: how sparse the head is, who asks, how urgently.
    """

    model: str
    prompt: tuple[int, ...]
    drawn: int
    sampling: SamplingParams
    eos: frozenset[int]
    ended_by: Hashable
    constraint: Constraint | None
    exit: EarlyExit | None
    confidence: Confidence | None
    jump: bool
    draft: Drafting | None
    route: Routing | None

    @classmethod
    def of(cls, model: str, request: GenerateRequest) -> SampleSource | None:
        """None where it cannot be told what the samples depend on, or the request wants no part in what others drew.

        It cannot be told of a watch or a mask that does not say what it stands for, nor of early exits that a router
        decides, which learns.
        """
        unknown = (
            (request.watch is not None and request.ended_by is None)
            or (request.mask is not None and request.constraint is None)
            or (request.exit is not None and request.exit.route is not None)
        )
        if unknown or not request.cached:
            return None
        return cls(
            model,
            request.prompt,
            request.drawn,
            request.sampling,
            request.eos,
            () if request.watch is None else request.ended_by,
            None if request.mask is None else request.constraint,
            request.exit,
            request.confidence,
            request.jump,
            request.draft,
            request.route,
        )

    @property
    def unwatched(self) -> SampleSource:
        """The source of samples that no watch ends: those from here are their beginnings."""
        return self if self.ended_by == () else replace(self, ended_by=())

    def key(self, noise: int) -> int:
        """A noise key as far as it has a part in the sample: 0 for each where greedy decoding uses no noise."""
        # Which draws of an early exit are shadowed goes by the key.
        return 0 if self.sampling.greedy and self.exit is None else noise

    @property
    def bytes(self) -> int:
        """About so much memory it takes."""
        return _TOKEN_BYTES * len(self.prompt)

"""A sample that has ended, in little memory: what it was drawn from, and what it cost to draw.

Its source is everything that its tokens, and the accounts of how they came about, depend on.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

from qpdsl.executor.requests.request import GenerateRequest, Sample, StepCounts, Watch
from qpdsl.executor.requests.ticket import ForwardSeconds

# Of a token in a tuple: the reference, and mostly an object of its own.
_TOKEN_BYTES = 36
# Of the objects that a sample consists of, without what grows with its tokens; of a draw's figures; of a count.
_OBJECT_BYTES, _FIGURES_BYTES, _COUNT_BYTES = 600, 160, 36
# What of a request a sample does not depend on, or what stands for it elsewhere in its source.
_LEFT_OUT: dict[str, Any] = {"keys": (0,), "max_tokens": 1, "watch": None, "mask": None, "stops": (), "priority": 0}
_LEFT_OUT |= {"sparse": False, "logprobs": True, "lead": False}


@dataclass(frozen=True, slots=True)
class SampleSource:
    """All that a sample depends on but its noise key and its `max_tokens`.

    `request` is alike for all that have the same: `ended_by` and its `constraint` stand for the watch and the mask.
    `jump`, `draft` and `route` change no token, but the counts of the steps. What is left out of it changes neither:
    how sparse the head is, what is told of the draws, who asks, how urgently.
    """

    model: str
    request: GenerateRequest
    ended_by: Hashable

    @classmethod
    def of(cls, model: str, request: GenerateRequest) -> SampleSource | None:
        """None where it cannot be told what the samples depend on, or the request wants no part in what others drew.

        It cannot be told of a watch or a mask that does not say what it stands for, nor of early exits that a router
        decides, which learns. Samples whose first tokens are of other ranks are others under any key. Nobody asks twice
        for a token that is contrasted with the same logits.
        """
        unknown = (
            (request.watch is not None and request.ended_by is None)
            or (request.mask is not None and request.constraint is None)
            or (request.exit is not None and request.exit.route is not None)
            or request.rank is not None
            or request.contrast is not None
        )
        if unknown or not request.cached:
            return None
        constraint = None if request.mask is None else request.constraint
        alike = replace(request, constraint=constraint, figures=request.floor is not None, **_LEFT_OUT)
        return cls(model, alike, () if request.watch is None else request.ended_by)

    @property
    def unwatched(self) -> SampleSource:
        """The source of samples that no watch ends: those from here are their beginnings."""
        return self if self.ended_by == () else replace(self, ended_by=())

    def key(self, noise: int) -> int:
        """A noise key as far as it has a part in the sample: 0 for each where greedy decoding uses no noise."""
        # Which draws of an early exit are shadowed goes by the key.
        return 0 if self.request.sampling.greedy and self.request.exit is None else noise

    @property
    def bytes(self) -> int:
        """About so much memory it takes."""
        return _TOKEN_BYTES * len(self.request.prompt)


@dataclass(slots=True)
class DrawCost:
    """What a request to the engine took: the seconds of its `forwards`, and the tokens of all its samples."""

    forwards: ForwardSeconds
    sampled: int = 0

    def of(self, tokens: int) -> float:
        """The seconds of a sample of so many tokens, without those of its prompt."""
        return self.forwards.drawn * tokens / self.sampled if self.sampled else 0.0


@dataclass(frozen=True, slots=True)
class KeptSample:
    """A sample without its tokens and their log-probabilities, which are kept as arrays.

    `logprobs` and `figures` say whether the request that drew it asked for these.
    """

    logprobs: bool
    figures: bool
    cost: DrawCost
    _sample: Sample
    _tokens: array[int]
    _token_logprobs: array[float]

    @classmethod
    def of(cls, sample: Sample, request: GenerateRequest, cost: DrawCost) -> KeptSample:
        return cls.packed(sample, cost, logprobs=request.logprobs, figures=request.figures)

    @classmethod
    def packed(cls, sample: Sample, cost: DrawCost, *, logprobs: bool, figures: bool) -> KeptSample:
        """The sample that a request got which asked for its `logprobs` or `figures`, or did not."""
        return cls(
            logprobs,
            figures,
            cost,
            replace(sample, tokens=(), logprobs=(), watch=None),
            array("i", sample.tokens),
            array("d", sample.logprobs),
        )

    def sample(self) -> Sample:
        """The sample, without a watch."""
        return replace(self._sample, tokens=tuple(self._tokens), logprobs=tuple(self._token_logprobs))

    def does_for(self, request: GenerateRequest) -> bool:
        """Whether it is the sample that a request from the same source, under the same noise key, would get."""
        if self.logprobs < request.logprobs or self.figures < request.figures:
            return False
        length, most = len(self._tokens), request.max_tokens
        if self._sample.finish == "length":
            return length == most
        # The token that a model was unsure of would have been one more.
        return length < most if self._sample.finish == "unsure" else length <= most

    def begins_for(self, request: GenerateRequest) -> bool:
        """Whether its beginning is what a request gets whose source differs in its watch alone."""
        told = self.logprobs >= request.logprobs and self.figures >= request.figures
        long = self._sample.finish in ("eos", "until") or len(self._tokens) >= request.max_tokens
        return told and long and can_be_cut(self.sample())

    @property
    def bytes(self) -> int:
        """About so much memory it takes."""
        return (
            _OBJECT_BYTES
            + len(self._tokens) * self._tokens.itemsize
            + len(self._token_logprobs) * self._token_logprobs.itemsize
            + len(self._sample.figures) * _FIGURES_BYTES
            + (len(self._sample.steps.allowed) + 2 * len(self._sample.steps.written)) * _COUNT_BYTES
        )


def can_be_cut(sample: Sample) -> bool:
    """Whether all that is told of a sample is known of its beginnings too: each token had a forward of its own."""
    length = len(sample.tokens)
    plain = sample.steps == StepCounts(length, length) and not sample.near_ties and sample.confidence is None
    return plain and sample.billed is None and len(sample.logprobs) == length


def cut_by(sample: Sample, watch: Watch | None, most: int) -> Sample:
    """The sample as it would be had the watch followed it, and with at most so many tokens."""
    whole = len(sample.tokens)
    for length, token in enumerate(sample.tokens, 1):
        if length == whole and sample.finish == "eos":
            break
        stopped = watch is not None and watch.push(token)
        if length == whole and sample.finish == "until":
            break
        if stopped or length == most:
            logprob = 0.0
            # One after the other, as the engine adds them.
            for value in sample.logprobs[:length]:
                logprob += value
            return replace(
                sample,
                tokens=sample.tokens[:length],
                finish="stop" if stopped else "length",
                logprob=logprob,
                logprobs=sample.logprobs[:length],
                figures=sample.figures[:length],
                steps=StepCounts(length, length),
            )
    return sample


def as_asked(sample: Sample, request: GenerateRequest, watch: Watch | None) -> Sample:
    """The sample with its own watch, and nothing told that the request does not ask for."""
    sample = replace(sample, watch=watch)
    if not request.logprobs:
        sample = replace(sample, logprob=0.0, logprobs=(0.0,) * len(sample.logprobs))
    return sample if request.figures else replace(sample, figures=())


def given(sample: Sample, request: GenerateRequest, index: int) -> Sample:
    """A whole sample as a request gets it as its sample `index`: its watch has seen it, token by token."""
    watch = None if request.watch is None else request.watch(index)
    show(sample, watch)
    return as_asked(sample, request, watch)


def show(sample: Sample, watch: Watch | None) -> None:
    """Has a watch see a whole sample, as it would have seen it token by token."""
    if watch is not None:
        for token in sample.tokens[: len(sample.tokens) - (sample.finish == "eos")]:
            watch.push(token)

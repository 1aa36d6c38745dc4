"""`via filter(…)`: the small model's token stands where it is sure of it; elsewhere the large model draws.

Source: CALID, "Collaborative Accelerate LLM Inference with Draft Model with Filter Decoding", algorithm 2. Both models
sample with the noise of the row and the place (`instance/candidates.py`), so a token of the large model is the one that
it would have drawn by itself after the same text. How sure the small model is: `executor/requests/drawing.py`.

There are two ways, with the same tokens:

    confidence  each token is a request of its own: one to the small model, and where it is unsure one to the large one
    cached      a request to the small model goes on until it is unsure; requests to the large model wait for each other
                in the request cache (`instance/request_cache.py`), and it catches up in one chunk on what it lacks

A row that needs no large call never waits for one. It ends with its request to the small model and leaves its place in
the batch to another; where it is the operator's only row the next operator begins at once. An operator of many rows
ends with its last one, as any other does.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.drawing import Confidence, ConfidenceMeasure
from qpdsl.executor.requests.request import Completion, GenerateRequest, LogProbRequest, Mask, Sample
from qpdsl.executor.requests.shadow import shadowed
from qpdsl.executor.runtime.generate.continuation import Continuation
from qpdsl.executor.runtime.generate.piecewise import PiecewiseSample, begun
from qpdsl.executor.runtime.generate.sampling import Sampling
from qpdsl.executor.runtime.instance.instance import Instance, Submissions, completed
from qpdsl.executor.runtime.instance.request_cache import Flush, RequestCache
from qpdsl.executor.runtime.instance.row_tasks import together
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.ops import THRESHOLDS


async def filter_samples(sampling: Sampling, continuations: list[Continuation]) -> list[tuple[Sample, ...]]:
    """The samples of each row, each drawn a token at a time."""
    filtering = _Filtering.of(sampling)
    rows = [filtering.samples(continuation) for continuation in continuations]
    await together(filtering.draw_tokens(sample) for row in rows for sample in row)
    return [filtering.drawn(row) for row in rows]


async def cached_filter_samples(sampling: Sampling, continuations: list[Continuation]) -> list[tuple[Sample, ...]]:
    """The samples of each row, drawn in runs; where prefixes are shared, those of a row begin in one request."""
    filtering = _Filtering.of(sampling)
    rows = [filtering.samples(continuation) for continuation in continuations]
    shared = sampling.strategy.share
    beginnings = [part for row in rows for part in ([row] if shared else [[sample] for sample in row])]
    await together(filtering.draw_runs(part) for part in beginnings)
    return [filtering.drawn(row) for row in rows]


@dataclass(eq=False, slots=True)
class _Sample(PiecewiseSample):
    """One that two models write.

    `confidence`: what the small model's next token is held to. `called`: whether the large model drew any of it.
    `large`: the places of tokens that the large one drew.
    """

    confidence: Confidence = field(kw_only=True)
    called: bool = False
    large: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Filtering:
    """What the samples of one run of an operator have in common."""

    sampling: Sampling
    large: TextModel
    small: TextModel
    by: ConfidenceMeasure
    flush: Flush
    cache: RequestCache

    @classmethod
    def of(cls, sampling: Sampling) -> _Filtering:
        """Raises RowError where a number of the clause does not do."""
        instance, via, strategy = sampling.instance, sampling.op.via, sampling.strategy
        assert isinstance(via, ops.Filter)
        return cls(
            sampling,
            sampling.model,
            instance.services.models[via.model.name],
            via.by,
            Flush(
                strategy.flush_rows if via.rows is None else instance.whole("rows", via.rows),
                strategy.flush_seconds if via.wait is None else instance.number("wait", via.wait) or 0.0,
            ),
            instance.services.request_cache or RequestCache(instance.services.engine),
        )

    @property
    def instance(self) -> Instance:
        return self.sampling.instance

    @property
    def counts(self) -> Counter[str]:
        return self.instance.usage.counts

    def samples(self, continuation: Continuation) -> list[_Sample]:
        """The distinct samples of a row, with nothing drawn."""
        options = continuation.options
        measure = partial(Confidence, self.by, share=options.share)
        confidence = measure() if options.threshold is None else measure(options.threshold)
        return [_Sample(*own, confidence=confidence) for own in begun(self.sampling, continuation)]

    def drawn(self, row: list[_Sample]) -> tuple[Sample, ...]:
        """All samples of a row, of which the distinct ones have ended; they are counted."""
        self.counts["filter_samples"] += len(row)
        self.counts["filter_alone"] += sum(not sample.called for sample in row)
        return self.sampling.with_copies(row[0].continuation, tuple(sample.sample for sample in row))

    async def draw_tokens(self, sample: _Sample) -> None:
        """Draws a sample, with a request for each token."""
        while sample.finish is None:
            request = self._small([sample], 1)
            if self._took_piece(sample, await self._drawn_small(request)):
                large = self._large(sample)
                self._took_large(sample, large, await completed(self.instance, self.large.name, large))
        await self._shadow(sample)
        await self._read(sample)

    async def draw_runs(self, samples: list[_Sample]) -> None:
        """Draws samples of one row of which nothing is drawn: they begin together, and each goes on by itself."""
        large, tasks = self.large.name, list[asyncio.Task[None]]()
        request = self._small(samples, samples[0].room)
        with ExitStack() as working:
            stacks = [working.enter_context(ExitStack()) for _ in samples]
            for stack in stacks:
                stack.enter_context(self.cache.working(large))

            def ended(index: int, piece: Sample) -> None:
                tasks.append(asyncio.ensure_future(self._go_on(samples[index], piece, stacks[index])))

            try:
                with Submissions(self.instance) as submissions:
                    ticket = submissions.submit(self.small.name, request)
                    ticket.on_sample = ended
                    await ticket
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _go_on(self, sample: _Sample, piece: Sample, working: ExitStack) -> None:
        """Draws a sample on from its first piece. `working` is left as soon as the small model has done its part."""
        working.close()
        unsure = self._took_piece(sample, piece)
        while unsure:
            large = self._large(sample)
            ticket, size = await self.cache.sent(self.large.name, large, self.flush)
            with Submissions(self.instance) as submissions:
                submissions.take(ticket)
                completion = await ticket
            self.counts[f"flush_{size}"] += 1
            self._took_large(sample, large, completion)
            if sample.finish is not None:
                break
            with self.cache.working(self.large.name):
                request = self._small([sample], sample.room)
                piece = await self._drawn_small(request)
            unsure = self._took_piece(sample, piece)
        await self._shadow(sample)
        await self._read(sample)

    def _small(self, samples: list[_Sample], tokens: int) -> GenerateRequest:
        """A request for up to so many tokens of the small model, each of which must stand."""
        return self._request(samples, tokens, samples[0].confidence)

    def _large(self, sample: _Sample) -> GenerateRequest:
        return self._request([sample], 1, None)

    def _request(self, samples: list[_Sample], tokens: int, confidence: Confidence | None) -> GenerateRequest:
        """One that goes on with a sample, or begins with several.

        Their masks are made when there is room for them. The first of several may have gone on by then.
        """
        first, decode = samples[0], self.sampling.strategy.decode
        watches = [sample.watch for sample in samples if sample.watch is not None]
        return GenerateRequest(
            first.text,
            tuple(sample.key for sample in samples),
            first.continuation.options.params,
            tokens,
            self.large.eos,
            watches.__getitem__ if watches else None,
            first.masks if first.mask is None or len(samples) > 1 else first.mask.fork,
            drawn=first.continuation.drawn + len(first.tokens),
            confidence=confidence,
            cached=self.sampling.strategy.share,
            jump=decode.constraint == "jump",
            sparse=decode.head == "sparse",
            since=first.since,
        )

    async def _drawn_small(self, request: GenerateRequest) -> Sample:
        """What the small model draws for a request for one sample."""
        return (await completed(self.instance, self.small.name, request)).samples[0]

    def _took_piece(self, sample: _Sample, piece: Sample) -> bool:
        """The sample goes on by what the small model drew; True where it was unsure of what follows."""
        unsure = piece.finish == "unsure"
        self.counts["filter_draws"] += piece.steps.draws
        self.counts["filter_sure"] += piece.steps.draws - unsure
        sample.confidence = piece.confidence or sample.confidence
        sample.take(piece, "small")
        return unsure

    def _took_large(self, sample: _Sample, request: GenerateRequest, completion: Completion) -> None:
        """The sample goes on by what the large model drew."""
        self.counts["large_draws"] += 1
        self.counts["large_tokens"] += len(request.prompt) - completion.cached
        sample.large.add(len(sample.tokens))
        sample.take(completion.samples[0])
        sample.called = True

    async def _shadow(self, sample: _Sample) -> None:
        """Has the large model draw a share of what the small one drew, once the sample has ended. Its tokens stay."""
        sampling, counts = self.sampling, self.counts
        share, jump = sampling.instance.shadow, sampling.strategy.decode.constraint == "jump"
        mask = sample.masks() if share and sample.masks is not None else None
        for place, state in small_draws(sample.tokens, sample.large, mask, jump=jump) if share else ():
            if not shadowed(sample.key, place, share):
                continue
            request = replace(
                self._large(sample),
                prompt=sample.continuation.prompt + sample.tokens[:place],
                watch=None,
                mask=None if state is None else state.fork,
                drawn=sample.continuation.drawn + place,
                # Nobody waits for its token.
                priority=1,
                jump=False,
                logprobs=False,
            )
            completion = await completed(self.instance, self.large.name, request)
            counts["large_tokens"] += len(request.prompt) - completion.cached
            told = sample.confidence.by == "probability" and sample.confidence.share is None
            probability = math.exp(sample.logprobs[place]) if told else None
            count_shadow(counts, probability, same=completion.samples[0].tokens[0] == sample.tokens[place])

    async def _read(self, sample: _Sample) -> None:
        """Has the large model tell the log-probabilities of a sample that has ended, where somebody reads them."""
        if not self.sampling.strategy.logprobs:
            return
        request = LogProbRequest(sample.continuation.prompt, sample.tokens, cached=self.sampling.strategy.share)
        sample.logprobs = (await completed(self.instance, self.large.name, request)).logprobs


def small_draws(
    tokens: Sequence[int], large: Collection[int], mask: Mask | None, *, jump: bool
) -> Iterator[tuple[int, Mask | None]]:
    """The places of a sample's tokens that the small model drew, each with the mask as it was before the token.

    `large` are those where the large model did. `mask` is a fresh one of the sample, and goes on with it. With `jump`
    nobody drew what it forced.
    """
    forced: list[int] = []
    if mask is not None and jump:
        forced = mask.forced()
    for place, token in enumerate(tokens):
        if not forced and place not in large:
            yield place, None if mask is None else mask.fork()
        if mask is not None and place + 1 < len(tokens):
            mask.push(token)
            forced = forced[1:] or (mask.forced() if jump else [])


def count_shadow(counts: Counter[str], probability: float | None, *, same: bool) -> None:
    """Counts a draw that the large model made too, by the small one's `probability` where its threshold is one of it.

    So one run tells of every larger threshold what it would have lost.
    """
    for suffix in ("", *(f"_{least}" for least in THRESHOLDS if probability is not None and probability > least)):
        counts[f"shadowed{suffix}"] += 1
        counts[f"differed{suffix}"] += not same

"""The `generate` operator: each unfinished row becomes n rows, all sampled together.

The decode plan says who draws the samples. Where one request draws a whole sample it is the engine; `SAMPLERS` lists
the variants that draw them otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from qpdsl.executor.requests.request import Sample
from qpdsl.executor.runtime.generate.calls_ahead import cut_at_stop, taken_over
from qpdsl.executor.runtime.generate.choice import choice_samples
from qpdsl.executor.runtime.generate.continuation import Continuation, finished_row, read_contexts, thought_tokens
from qpdsl.executor.runtime.generate.contrast import contrast_samples
from qpdsl.executor.runtime.generate.filter import cached_filter_samples, filter_samples
from qpdsl.executor.runtime.generate.sampling import Sampling
from qpdsl.executor.runtime.generate.thought import ThoughtWatch, between, joined, submit
from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, Submissions
from qpdsl.executor.runtime.instance.operator_events import MadeRow, emit_expanded
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import DecodePlan
from qpdsl.planner.plan.physical import GenerateStrategy

Sampler = Callable[[Sampling, list[Continuation]], Awaitable[list[tuple[Sample, ...]]]]
# By part and name of the variant (`planner/plan/decode_plan.py`). Each gives the samples of every row.
SAMPLERS: Mapping[tuple[str, str], Sampler] = {
    ("constraint", "options"): choice_samples,
    ("constraint", "tree"): choice_samples,
    ("filter", "confidence"): filter_samples,
    ("filter", "cached"): cached_filter_samples,
    ("filter", "contrast"): contrast_samples,
}


async def generate(
    op: ops.Generate, rows: Candidates, instance: Instance, strategy: GenerateStrategy | None = None
) -> Candidates:
    """Without a strategy the plainest one is used.

    Raises RowError where an option's value, a context or a constraint does not do.
    """
    strategy = strategy or GenerateStrategy(DecodePlan.plainest(op))
    sampling = Sampling.of(op, instance, strategy)
    await read_contexts(op, rows, instance)
    continuations = sampling.continuations(rows)
    unfinished = [continuation for continuation in continuations if continuation is not None]
    sampler = _sampler(strategy.decode)
    if sampler is engine_samples or not any(continuation.thought for continuation in unfinished):
        samples_of = iter(await sampler(sampling, unfinished))
    else:
        samples_of = iter(await _after_thoughts(sampling, unfinished, sampler))
    children: list[Row] = []
    made: list[MadeRow] = []
    for row, continuation in zip(rows, continuations, strict=True):
        if continuation is None:
            children.append(finished_row(row, op))
            continue
        samples = next(samples_of)
        sampling.count(continuation, samples)
        own = [sampling.child(continuation, index, sample) for index, sample in enumerate(samples)]
        children += own
        made += [
            MadeRow(child, sample, continuation.earlier, thought_tokens(sample))
            for child, sample in zip(own, samples, strict=True)
        ]
    if instance.watched:
        emit_expanded(made, op, sampling.model, instance)
    return tuple(children)


def _sampler(decode: DecodePlan) -> Sampler:
    for variant in decode.variants:
        if not variant.whole:
            return SAMPLERS[variant.part, variant.name]
    return engine_samples


async def engine_samples(sampling: Sampling, continuations: list[Continuation]) -> list[tuple[Sample, ...]]:
    """The samples of each row, drawn whole by the engine; those that ran ahead are taken over.

    So are those that an earlier call has written past its stop.
    """
    instance, name = sampling.instance, sampling.model.name
    ahead = instance.ahead if sampling.strategy.speculates else None
    owners: list[int] = []
    samples: list[list[Sample]] = [[] for _ in continuations]
    with Submissions(instance) as submissions:
        for number, continuation in enumerate(continuations):
            if (written := taken_over(sampling, continuation)) is not None:
                samples[number] += [written] * sampling.distinct(continuation)
                continue
            ticket = ahead.taken(continuation, instance) if ahead is not None else None
            if ticket is not None:
                submissions.take(ticket)
                owners.append(number)
                continue
            for request in sampling.requests(continuation):
                ticket = submit(instance.services.engine, name, request)
                submissions.take(ticket)
                owners.append(number)
                if ahead is not None:
                    ticket.on_sample = partial(ahead.ended, sampling, continuation)
        if ahead is not None:
            ahead.drop_others(instance)
        for number, completion in zip(owners, await submissions.completions(), strict=True):
            samples[number] += [cut_at_stop(sampling, continuations[number], sample) for sample in completion.samples]
    pairs = zip(continuations, samples, strict=True)
    return [sampling.with_copies(continuation, tuple(distinct)) for continuation, distinct in pairs]


async def _after_thoughts(
    sampling: Sampling, continuations: list[Continuation], sampler: Sampler
) -> list[tuple[Sample, ...]]:
    """The samples of each row by a sampler that knows no thoughts: it draws all thoughts first, then all answers.

    What draws no tokens, but chooses an answer, has the engine draw the thoughts.
    """
    held = sampling.op.constraint is not None
    thinking = [number for number, row in enumerate(continuations) if row.thought is not None]
    thoughts = await (engine_samples if sampler is choice_samples else sampler)(
        replace(sampling, mask=None), [continuations[number].of_thought for number in thinking]
    )
    # By the numbers of a row and its sample: those that have ended, and the thoughts of the others.
    ended: dict[tuple[int, int], Sample] = {}
    begun: dict[tuple[int, int], tuple[Sample, tuple[int, ...]]] = {}
    answers: list[Continuation] = []
    for number, own in zip(thinking, thoughts, strict=True):
        row = continuations[number]
        for index, sample in enumerate(own):
            watch, thought = sample.watch, row.thought
            assert isinstance(watch, ThoughtWatch) and thought is not None
            forced = between(thought, watch, sample, held=held)
            answer = None if forced is None else row.of_answer(index, sample.tokens + forced)
            if forced is None or answer is None:
                cut = sample.finish == "length" or forced is not None
                ended[number, index] = joined(sample, forced or (), None, "thought" if cut else sample.finish)
                continue
            watch.filled = answer.full
            begun[number, index] = sample, forced
            answers.append(answer)
    others = [number for number in range(len(continuations)) if number not in thinking]
    drawn = await sampler(sampling, [*answers, *(continuations[number] for number in others)])
    for (place, (sample, forced)), (answered,) in zip(begun.items(), drawn, strict=False):
        assert isinstance(sample.watch, ThoughtWatch)
        sample.watch.take_answer(answered.watch, len(sample.tokens) + len(forced))
        ended[place] = replace(joined(sample, forced, answered), watch=sample.watch)
    whole = dict(zip(others, drawn[len(answers) :], strict=True))
    return [
        whole[number] if number in whole else tuple(ended[number, index] for index in range(row.options.count))
        for number, row in enumerate(continuations)
    ]

"""The `generate` operator: each unfinished row becomes n rows, all sampled together.

The decode plan says who draws the samples. Where one request draws a whole sample it is the engine; `SAMPLERS` lists
the variants that draw them otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from qpdsl.executor.requests.request import Sample
from qpdsl.executor.runtime.generate.calls_ahead import cut_at_stop, taken_over
from qpdsl.executor.runtime.generate.choice import choice_samples
from qpdsl.executor.runtime.generate.continuation import Continuation, finished_row
from qpdsl.executor.runtime.generate.filter import cached_filter_samples, filter_samples
from qpdsl.executor.runtime.generate.sampling import Sampling
from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, Submissions
from qpdsl.executor.runtime.instance.operator_events import emit_expanded
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
}


async def generate(
    op: ops.Generate, rows: Candidates, instance: Instance, strategy: GenerateStrategy | None = None
) -> Candidates:
    """Without a strategy the plainest one is used.

    Raises RowError where an option's value, a context or a constraint does not do.
    """
    strategy = strategy or GenerateStrategy(DecodePlan.plainest(op))
    sampling = Sampling.of(op, instance, strategy)
    continuations = sampling.continuations(rows)
    unfinished = [continuation for continuation in continuations if continuation is not None]
    samples_of = iter(await _sampler(strategy.decode)(sampling, unfinished))
    children: list[Row] = []
    all_samples: list[Sample] = []
    for row, continuation in zip(rows, continuations, strict=True):
        if continuation is None:
            children.append(finished_row(row, op))
            continue
        samples = next(samples_of)
        sampling.count(continuation, samples)
        children += [sampling.child(continuation, index, sample) for index, sample in enumerate(samples)]
        all_samples += samples
    if instance.watched:
        emit_expanded(children, rows, all_samples, sampling.model, instance)
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
    ahead = instance.ahead if sampling.strategy.run_ahead else None
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
                ticket = submissions.submit(name, request)
                instance.usage.prompt_tokens += len(request.prompt)
                owners.append(number)
                if ahead is not None:
                    ticket.on_sample = partial(ahead.ended, sampling, continuation)
        if ahead is not None:
            ahead.drop_others(instance)
        for number, completion in zip(owners, await submissions.completions(), strict=True):
            samples[number] += [cut_at_stop(sampling, continuations[number], sample) for sample in completion.samples]
    pairs = zip(continuations, samples, strict=True)
    return [sampling.with_copies(continuation, tuple(distinct)) for continuation, distinct in pairs]

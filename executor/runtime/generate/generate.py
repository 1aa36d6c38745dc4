"""The `generate` operator: each unfinished row becomes n rows, all sampled together."""

from __future__ import annotations

from functools import partial

from qpdsl.executor.requests.request import Sample
from qpdsl.executor.runtime.generate.choice import choose
from qpdsl.executor.runtime.generate.continuation import Going, passed
from qpdsl.executor.runtime.generate.filter import filtered
from qpdsl.executor.runtime.generate.sampling import Drawing
from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, Submissions
from qpdsl.executor.runtime.instance.tell import tell_expanded
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import GenerateStrategy

_PLAIN = GenerateStrategy()


async def generate(
    op: ops.Generate, rows: Candidates, instance: Instance, strategy: GenerateStrategy = _PLAIN
) -> Candidates:
    """Raises RowError where an option's value, a context or a constraint does not do.

    `draft` changes no token, so it is nothing to the plain way of decoding.
    """
    drawing = Drawing.of(op, instance, strategy)
    going = [drawing.going(row) for row in rows]
    some = [each for each in going if each is not None]
    if op.constraint is not None and op.constraint.kind == "choice":
        samples = await choose(op.constraint, drawing, some)
    elif isinstance(op.via, ops.Filter):
        samples = await filtered(op.via, drawing, some)
    else:
        samples = await _sampled(drawing, some)
    drawn = iter(samples)
    made: list[Row] = []
    flat: list[Sample] = []
    for row, each in zip(rows, going, strict=True):
        if each is None:
            made.append(passed(row, op))
            continue
        own = next(drawn)
        drawing.spent(each, own)
        made += [drawing.child(each, index, sample) for index, sample in enumerate(own)]
        flat += own
    if instance.watched:
        tell_expanded(made, rows, flat, drawing.model, instance)
    return tuple(made)


async def _sampled(drawing: Drawing, going: list[Going]) -> list[tuple[Sample, ...]]:
    """The samples of each row, by the engine."""
    instance, name = drawing.instance, drawing.model.name
    ahead = instance.ahead if drawing.strategy.run_ahead else None
    owners: list[int] = []
    with Submissions(instance) as submissions:
        for number, each in enumerate(going):
            held = ahead.taken(each, instance) if ahead is not None else None
            if held is not None:
                submissions.take(held)
                owners.append(number)
                continue
            for request in drawing.requests(each):
                ticket = submissions.submit(name, request)
                instance.usage.prompt_tokens += len(request.prompt)
                owners.append(number)
                if ahead is not None:
                    ticket.each = partial(ahead.ended, drawing, each)
        if ahead is not None:
            ahead.drop_others(instance)
        samples: list[list[Sample]] = [[] for _ in going]
        for number, completion in zip(owners, await submissions.completions(), strict=True):
            samples[number] += completion.samples
    return [drawing.copied(tuple(each)) for each in samples]

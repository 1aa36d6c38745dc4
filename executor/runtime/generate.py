"""The `generate` operator: each unfinished row becomes n rows, all sampled together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from qpdsl.executor.decoding.constraint import ConstraintError
from qpdsl.executor.engine.request import GenerateRequest, Mask, Sample
from qpdsl.executor.runtime.candidates import Candidates, Row
from qpdsl.executor.runtime.choice import choose
from qpdsl.executor.runtime.continuation import Going, Options, passed
from qpdsl.executor.runtime.filtered import filtered
from qpdsl.executor.runtime.instance import Instance, RowError, Submissions
from qpdsl.executor.runtime.loading import TextModel
from qpdsl.executor.runtime.telling import tell_expanded
from qpdsl.planner import ops


async def generate(op: ops.Generate, rows: Candidates, instance: Instance) -> Candidates:
    """Raises RowError where an option's value, a context or a constraint does not do.

    `draft` changes no token, so it is nothing to the plain way of decoding.
    """
    model = instance.services.models[op.model]
    options = Options.of(op, instance)
    going = [Going.of(op, row, model, options, instance) for row in rows]
    some = [each for each in going if each is not None]
    if op.constraint is not None and op.constraint.kind == "choice":
        samples = await choose(op.constraint, model, options, some, op.stage, instance)
    elif isinstance(op.via, ops.Filter):
        samples = await filtered(op, op.via, model, options, some, instance)
    else:
        samples = await _sampled(op, model, options, some, _mask(op, model), instance)
    drawn = iter(samples)
    made: list[Row] = []
    flat: list[Sample] = []
    for row, each in zip(rows, going, strict=True):
        if each is None:
            made.append(passed(row, op))
            continue
        for index, sample in enumerate(next(drawn)):
            instance.usage.sampled_tokens += len(sample.tokens)
            instance.usage.near_ties += sample.near_ties
            made.append(each.child(index, sample, op, model, options.stop))
            flat.append(sample)
    if instance.watched:
        tell_expanded(made, rows, flat, model, instance)
    return tuple(made)


def _mask(op: ops.Generate, model: TextModel) -> Callable[[], Mask] | None:
    if op.constraint is None:
        return None
    try:
        return model.constrainer.masks(op.constraint.kind, op.constraint.source)
    except ConstraintError as error:
        raise RowError(f"`as {op.constraint.name}` with model `{model.name}`: {error}") from error


async def _sampled(
    op: ops.Generate,
    model: TextModel,
    options: Options,
    going: list[Going],
    mask: Callable[[], Mask] | None,
    instance: Instance,
) -> list[tuple[Sample, ...]]:
    """The samples of each row, by the engine."""
    watched = options.watched(instance)
    early = instance.number("margin", op.via.margin) if isinstance(op.via, ops.Amortized) else None
    with Submissions(instance) as submissions:
        for each in going:
            request = GenerateRequest(
                each.prompt,
                each.keys,
                options.sampling,
                each.limit,
                model.eos,
                partial(options.watch, op, model, each.paths, instance) if watched else None,
                mask,
                early=early,
            )
            submissions.submit(model.name, request)
            instance.usage.prompt_tokens += len(each.prompt)
        return [completion.samples for completion in await submissions.completions()]

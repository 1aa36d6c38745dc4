"""The `generate` operator: each unfinished row becomes n rows, all sampled together."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.executor.decoding.stop import StopWatch
from qpdsl.executor.engine.request import GenerateRequest, Sample, SamplingParams
from qpdsl.executor.runtime.candidates import Candidates, Generated, Row
from qpdsl.executor.runtime.context import ContextError, encode
from qpdsl.executor.runtime.instance import Instance, RowError, Submissions
from qpdsl.executor.runtime.loading import TextModel
from qpdsl.planner import ops


async def generate(op: ops.Generate, rows: Candidates, instance: Instance) -> Candidates:
    """Raises RowError where an option's value or a context does not do."""
    model = instance.services.models[op.model]
    count = instance.whole("n", op.n)
    sampling = _sampling(op, instance)
    stop = instance.option(op.stop)
    if stop is not None and (not isinstance(stop, str) or not stop):
        raise RowError("`stop` must be a text that is not empty")
    bound = None if op.max_tokens is None else instance.whole("max_tokens", op.max_tokens)
    submitted: list[bool] = []
    with Submissions(instance.services.engine) as submissions:
        for row in rows:
            prompt = () if row.generated.finished else _prompt(row, model, instance)
            room = model.paged.max_positions - len(prompt)
            submitted.append(bool(prompt) and (room > 0 or not row.generated.sampled))
            if submitted[-1]:
                paths = [(*row.path, index) for index in range(count)]
                request = GenerateRequest(
                    prompt,
                    tuple(instance.key(op.stage, path) for path in paths),
                    sampling,
                    max(1, room if bound is None else min(bound, room)),
                    model.eos,
                    None if stop is None else lambda: StopWatch(model.backend, stop),
                )
                submissions.submit(model.name, request)
                instance.usage.prompt_tokens += len(prompt)
        completions = iter(await submissions.completions())
    made: list[Row] = []
    for row, went in zip(rows, submitted, strict=True):
        if not went:
            made.append(row if row.generated.finished else _full(row))
            continue
        for index, sample in enumerate(next(completions).samples):
            instance.usage.sampled_tokens += len(sample.tokens)
            instance.usage.near_ties += sample.near_ties
            made.append(_child(row, index, sample, model, stop))
    return tuple(made)


def _sampling(op: ops.Generate, instance: Instance) -> SamplingParams:
    return SamplingParams(
        instance.number("temperature", op.temperature) or 0.0,
        None if op.top_k is None else instance.whole("top_k", op.top_k),
        instance.number("top_p", op.top_p),
        instance.number("min_p", op.min_p),
    )


def _prompt(row: Row, model: TextModel, instance: Instance) -> tuple[int, ...]:
    """The tokens a row goes on from: its context, then what was generated since."""
    assert row.context is not None
    context = instance.contexts.get((model.name, row.context))
    if context is None:
        try:
            context = encode(model.tokenizer, row.context)
        except ContextError as error:
            raise RowError(f"model `{model.name}`: {error}") from error
        if not context:
            raise RowError("the context is empty: there is nothing to go on from")
        instance.contexts[model.name, row.context] = context
    return context + _generated(row, model)


def _generated(row: Row, model: TextModel) -> tuple[int, ...]:
    """What was generated since the context was set, in the tokens of `model`."""
    if row.generated.model == model.name:
        return row.generated.tokens
    return tuple(model.encode(row.generated.text))


def _full(row: Row) -> Row:
    """A row whose context has no room left."""
    return replace(
        row,
        columns={**row.columns, "finish": "length", "finished": True},
        generated=replace(row.generated, finished=True),
    )


def _child(row: Row, index: int, sample: Sample, model: TextModel, stop: str | None) -> Row:
    before = row.generated
    earlier = _generated(row, model)
    tokens = earlier + (sample.tokens[:-1] if sample.finish == "eos" else sample.tokens)
    if isinstance(sample.watch, StopWatch) and sample.watch.cut is not None:
        cut = sample.watch.cut
        tokens = tokens[: len(earlier) + cut.tokens]
        tokens += model.encode_after(tokens, cut.tail) if cut.tail else ()
    text = model.decode(tokens)
    step = text[len(before.text) :]
    if stop is not None and sample.finish == "stop":
        step = step.removesuffix(stop)
    generated = Generated(
        model.name,
        tokens,
        text,
        sample.finish != "stop",
        before.logprob + sample.logprob,
        before.sampled + len(sample.tokens),
    )
    columns = {
        **row.columns,
        "text": text,
        "step": step,
        "finish": sample.finish,
        "finished": generated.finished,
        "logprob": generated.logprob,
        "tokens": generated.sampled,
    }
    return Row(row.context, (*row.path, index), columns, generated)

"""From a row to the tokens that it continues, and from a sample to the row that it makes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qpdsl.executor.events.events import Path
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.request import Sample, SamplingParams
from qpdsl.executor.runtime.instance.candidates import Generated, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError
from qpdsl.executor.runtime.operators.valid_records import fault_of
from qpdsl.executor.text.context import ContextError, encode
from qpdsl.executor.text.stop import StopWatch
from qpdsl.planner.plan import ops


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """The options of a `generate` stage, evaluated."""

    count: int
    params: SamplingParams
    stop: str | None
    max_tokens: int | None

    @classmethod
    def of(cls, op: ops.Generate, instance: Instance) -> GenerateOptions:
        """Raises RowError where a value does not do."""
        count = instance.whole("n", op.n)
        params = SamplingParams(
            instance.number("temperature", op.temperature) or 0.0,
            None if op.top_k is None else instance.whole("top_k", op.top_k),
            instance.number("top_p", op.top_p),
            instance.number("min_p", op.min_p),
        )
        stop = instance.option(op.stop)
        if stop is not None and (not isinstance(stop, str) or not stop):
            raise RowError("`stop` must be a text that is not empty")
        bound = None if op.max_tokens is None else instance.whole("max_tokens", op.max_tokens)
        return cls(count, params, stop, bound)


@dataclass(frozen=True, slots=True)
class Continuation:
    """An unfinished row: the tokens that it goes on from, how many may follow, and its samples' paths and keys.

    `earlier` are the last of the tokens: what was generated since the context was set, in those of the model.
    """

    row: Row
    prompt: tuple[int, ...]
    earlier: tuple[int, ...]
    limit: int
    paths: tuple[Path, ...]
    keys: tuple[int, ...]

    @classmethod
    def of(
        cls, op: ops.Generate, row: Row, model: TextModel, options: GenerateOptions, instance: Instance
    ) -> Continuation | None:
        """None where the row is finished, or what was generated has filled its context. Raises RowError."""
        if row.generated.finished:
            return None
        earlier = _generated(row, model)
        prompt = _context(row, model, instance) + earlier
        models = [model, instance.services.models[op.via.model]] if isinstance(op.via, ops.Filter) else [model]
        room = min(one.max_positions for one in models) - len(prompt)
        assert row.context is not None
        if room <= 0 and (row.generated.sampled or row.context.grown):
            return None
        paths = tuple((*row.path, index) for index in range(options.count))
        return cls(
            row,
            prompt,
            earlier,
            max(1, room if options.max_tokens is None else min(options.max_tokens, room)),
            paths,
            tuple(instance.key(op.stage, path) for path in paths),
        )

    def child(self, index: int, sample: Sample, op: ops.Generate, model: TextModel, stop: str | None) -> Row:
        """The row that a sample makes."""
        row, before = self.row, self.row.generated
        tokens = self.earlier + (sample.tokens[:-1] if sample.finish == "eos" else sample.tokens)
        cut = sample.watch.cut if sample.finish == "stop" and isinstance(sample.watch, StopWatch) else None
        if cut is not None:
            tokens = tokens[: len(self.earlier) + cut.tokens]
            tokens += model.encode_after(tokens, cut.tail) if cut.tail else ()
        text = model.decode(tokens)
        step = text[len(before.text) :]
        if stop is not None and sample.finish == "stop":
            step = step.removesuffix(stop)
        whole = op.constraint is None or sample.finish in ("match", "eos")
        invalid = fault_of(step, op.constraint.schema) if op.constraint and op.constraint.schema and whole else None
        generated = Generated(
            model.name,
            tokens,
            text,
            sample.finish != "stop",
            before.logprob + sample.logprob,
            before.sampled + len(sample.tokens),
            not whole or invalid is not None,
            invalid,
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
        if op.into is not None:
            columns[op.into] = None if generated.incomplete else step
        return Row(row.context, self.paths[index], columns, generated)


def finished_row(row: Row, op: ops.Generate) -> Row:
    """A row that does not go on: it is finished already, or its context has no room left."""
    if not row.generated.finished:
        incomplete = op.constraint is not None
        row = replace(
            row,
            columns={**row.columns, "finish": "length", "finished": True},
            generated=replace(row.generated, finished=True, incomplete=incomplete),
        )
    return row if op.into is None or op.into in row.columns else row.with_column(op.into, None)


def _context(row: Row, model: TextModel, instance: Instance) -> tuple[int, ...]:
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
    return context


def _generated(row: Row, model: TextModel) -> tuple[int, ...]:
    """What was generated since the context was set, in the tokens of `model`."""
    if row.generated.model == model.name:
        return row.generated.tokens
    return tuple(model.encode(row.generated.text))

"""From a row to the tokens that it continues, and from a sample to the row that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from qpdsl.executor.events.events import Path
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.draw_figures import DrawFigures
from qpdsl.executor.requests.request import Sample, SamplingParams
from qpdsl.executor.runtime.instance.candidates import Generated, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError, checked
from qpdsl.executor.runtime.operators.json_documents import spelt_in
from qpdsl.executor.runtime.operators.valid_records import fault_of
from qpdsl.executor.text.context import ContextError, encode
from qpdsl.executor.text.stop import Stops, StopWatch
from qpdsl.planner.plan import ops
from qpdsl.planner.values.value import Value

# What leaves nothing to go on with: the model ended its turn, or has no room. All else the program has ended.
_FINISHED = ("eos", "context")


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """The options of a `generate` stage, evaluated for one row."""

    count: int
    params: SamplingParams
    stop: Stops | None
    max_tokens: int | None

    @classmethod
    def of(cls, values: Mapping[str, Value], patterns: tuple[str, ...]) -> GenerateOptions:
        """Of the values of the options that the stage has, and its regexes. Raises RowError where one does not do."""
        given = {name: checked(name, value) for name, value in values.items() if name != "stop"}
        top_k, bound = given.get("top_k"), given.get("max_tokens")
        params = SamplingParams(
            given["temperature"], None if top_k is None else int(top_k), given.get("top_p"), given.get("min_p")
        )
        stop = values.get("stop", ())
        texts = tuple(text for text in (stop if isinstance(stop, tuple) else (stop,)) if isinstance(text, str) and text)
        if len(texts) < (len(stop) if isinstance(stop, tuple) else 1):
            raise RowError("`stop` must be a text that is not empty, or a list of such texts")
        stops = Stops(texts, patterns) if texts or patterns else None
        return cls(int(given["n"]), params, stops, None if bound is None else int(bound))


@dataclass(frozen=True, slots=True)
class Continuation:
    """An unfinished row: the tokens that it goes on from, how many may follow, and its samples' paths and keys.

    `earlier` are the last of the tokens: what was generated since the context was set, in those of the model. `options`
    are those of the stage, for this row. `full`: as many tokens as may follow take all of the model's context.
    """

    row: Row
    options: GenerateOptions
    prompt: tuple[int, ...]
    earlier: tuple[int, ...]
    limit: int
    full: bool
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
        if room <= 0 and (row.generated.text or row.generated.sampled or row.context.grown):
            return None
        paths = tuple((*row.path, index) for index in range(options.count))
        return cls(
            row,
            options,
            prompt,
            earlier,
            max(1, room if options.max_tokens is None else min(options.max_tokens, room)),
            options.max_tokens is None or options.max_tokens >= room,
            paths,
            instance.keys(op.ordinal, row.context, paths),
        )

    def child(self, index: int, sample: Sample, op: ops.Generate, model: TextModel) -> Row:
        """The row that a sample makes."""
        row, before, stop = self.row, self.row.generated, self.options.stop
        tokens = self.earlier + (sample.tokens[:-1] if sample.finish == "eos" else sample.tokens)
        cut = sample.watch.cut if sample.finish == "stop" and isinstance(sample.watch, StopWatch) else None
        if cut is not None:
            tokens = tokens[: len(self.earlier) + cut.tokens]
            tokens += model.encode_after(tokens, cut.tail) if cut.tail else ()
        text = model.decode(tokens)
        known = before.text if text.startswith(before.text) else model.decode(self.earlier)
        step = text[len(known) :]
        # Special tokens of a `say` are in its text, but no tokenizer gives them back.
        text = before.text + step
        if stop is not None and sample.finish == "stop":
            step = stop.without(step)
        finish = self._finish(sample, op)
        whole = op.constraint is None or finish == "match"
        invalid = fault_of(step, op.constraint.schema) if op.constraint and op.constraint.schema and whole else None
        generated = Generated(
            model.name,
            tokens,
            text,
            finish in _FINISHED or (op.like is not None and finish == "length"),
            before.logprob + sample.logprob,
            before.sampled + sample.size,
            not whole or invalid is not None,
            invalid,
            least=_least(before, sample),
            figures=_figures(before, sample),
        )
        columns = {
            **row.columns,
            "text": text,
            "step": step,
            "finish": finish,
            "finished": generated.finished,
            "logprob": generated.logprob,
            "tokens": generated.sampled,
        }
        if op.into is not None:
            columns[op.into] = None if generated.incomplete else _held(op.constraint, step)
        return Row(row.context, self.paths[index], columns, generated)

    def _finish(self, sample: Sample, op: ops.Generate) -> str:
        """Why the sample ended, as a program sees it. A model can end a turn only where nothing holds its output."""
        chooses = op.constraint is not None and op.constraint.kind == "choice"
        if sample.finish == "length" and (self.full or chooses):
            return "context"
        return "match" if sample.finish == "eos" and op.constraint is not None else sample.finish


def _least(before: Generated, sample: Sample) -> float | None:
    """The least log-probability of a token, those of a sample counted in; what was chosen as a whole is one draw."""
    drawn = sample.logprobs or ((sample.logprob,) if sample.tokens else ())
    return min((value for value in (before.least, *drawn) if value is not None), default=None)


def _figures(before: Generated, sample: Sample) -> tuple[DrawFigures, ...] | None:
    """Those of all tokens, where each has some."""
    if before.figures is None or len(sample.figures) < len(sample.tokens):
        return None
    return before.figures + sample.figures


def _held(constraint: ops.Constraint | None, step: str) -> Value:
    """The value of an output that a constraint held: a text, or what its JSON spells; none where that is too large."""
    if constraint is None or constraint.type == "text":
        return step
    return spelt_in(step, constraint.type)


def finished_row(row: Row, op: ops.Generate) -> Row:
    """A row that does not go on: it is finished already, or its context has no room left."""
    if not row.generated.finished:
        incomplete = op.constraint is not None
        row = replace(
            row,
            columns={**row.columns, "finish": "context", "finished": True},
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
    generated = row.generated
    if generated.model in (model.name, ""):
        return model.encode_said(generated.tokens, generated.said)
    return tuple(model.encode(generated.text))

"""The events of one operator: it began, it made, scored or dropped candidates, it is done.

`emit_done` is for every run. The others describe single candidates, which is expensive, so they are called only where
`Instance.watched` is true. In all of them `instance` is the operator's own copy: its id, its rounds and its usage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from qpdsl.executor.events.events import CandidateRecord, Expanded, OperatorDone, OperatorStarted, Selected, Valued
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.request import Sample
from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.grammar.ast.walk import made_column
from qpdsl.planner.plan import ops
from qpdsl.planner.values.value import Value, format_value


def emit_started(rows_in: int, instance: Instance) -> None:
    """The operator begins on that many rows."""
    instance.services.events.emit(
        OperatorStarted(instance=instance.name, operator=instance.operator, rounds=instance.rounds, rows_in=rows_in)
    )


def emit_done(rows_in: int, rows_out: int, seconds: float, instance: Instance) -> None:
    """The operator is done: rows in and out, wall seconds, and the tokens and counts of its usage."""
    usage = instance.usage
    instance.services.events.emit(
        OperatorDone(
            instance=instance.name,
            operator=instance.operator,
            rows_in=rows_in,
            rows_out=rows_out,
            prompt_tokens=usage.prompt_tokens,
            sampled_tokens=usage.sampled_tokens,
            seconds=seconds,
            cached_tokens=usage.cached_tokens,
            rounds=instance.rounds,
            baseline=instance.baseline,
            counts={**usage.counts, "near_ties": usage.near_ties},
        )
    )


def emit_changes(op: ops.Operator, before: Candidates, after: Candidates, instance: Instance) -> None:
    """What an operator did to its rows: values set, rows kept and dropped, rows copied.

    `generate` emits its own event, while it has the samples; operators that contain others emit nothing here, but
    for the column that a `call` makes.
    """
    column = made_column(op)
    if isinstance(op, ops.Split):
        emit_copies(after, instance)
    elif op.rows in ("fewer", "count", "one") and not isinstance(op, ops.Return):
        kept = {row.path for row in after}
        instance.services.events.emit(
            Selected(
                instance=instance.name,
                operator=instance.operator,
                rounds=instance.rounds,
                kept=tuple(row.path for row in after),
                dropped=tuple(row.path for row in before if row.path not in kept),
            )
        )
    elif isinstance(op, ops.Say):
        _emit_values("step", after, instance, scores=False)
    elif op.rows == "same" and column is not None:
        _emit_values(column, after, instance, scores=isinstance(op, ops.Score))


def emit_copies(copies: Candidates, instance: Instance) -> None:
    """The rows that an operator copied others to."""
    _emit_expanded(tuple(CandidateRecord(path=row.path) for row in copies), instance)


class MadeRow(NamedTuple):
    """A row, the sample that made it, and the generated tokens that the sample went on from.

    So many of the sample's tokens were drawn for a `thought`.
    """

    row: Row
    sample: Sample
    earlier: tuple[int, ...]
    thought: int


def emit_expanded(made: Sequence[MadeRow], model: TextModel, instance: Instance) -> None:
    """The rows that samples made."""
    _emit_expanded(tuple(_candidate(*one, model) for one in made), instance)


def _emit_expanded(candidates: tuple[CandidateRecord, ...], instance: Instance) -> None:
    instance.services.events.emit(
        Expanded(instance=instance.name, operator=instance.operator, rounds=instance.rounds, candidates=candidates)
    )


def _candidate(row: Row, sample: Sample, earlier: tuple[int, ...], thought: int, model: TextModel) -> CandidateRecord:
    told = len(sample.logprobs) == len(sample.tokens)
    pieces = _pieces(sample.tokens, earlier, model, finished=row.generated.finished) if told else ()
    finish = row.columns.get("finish")
    return CandidateRecord(
        path=row.path,
        step=str(row.columns.get("step") or ""),
        finish=finish if isinstance(finish, str) else None,
        finished=row.generated.finished,
        logprob=row.generated.logprob,
        tokens=sample.size,
        pieces=pieces,
        logprobs=sample.logprobs if pieces else (),
        thought=row.generated.thought.text if thought and not row.generated.thought.open else None,
        thought_tokens=thought,
    )


def _pieces(tokens: tuple[int, ...], earlier: tuple[int, ...], model: TextModel, *, finished: bool) -> tuple[str, ...]:
    """The text of each token. A letter that is spread over several tokens comes with the last of them."""
    text = model.marked_detokenizer.begin(earlier)
    pieces = [text.push(token) for token in tokens]
    if pieces and finished:
        pieces[-1] += text.tail
    return tuple(pieces)


def _emit_values(column: str, rows: Candidates, instance: Instance, *, scores: bool) -> None:
    instance.services.events.emit(
        Valued(
            instance=instance.name,
            operator=instance.operator,
            rounds=instance.rounds,
            column=column,
            paths=tuple(row.path for row in rows),
            values=tuple(_scalar(row.columns.get(column)) for row in rows),
            scores=scores,
        )
    )


def _scalar(value: Value) -> str | float | bool | None:
    return format_value(value) if isinstance(value, (tuple, Mapping)) else value

"""The events of one operator: it began, it made, scored or dropped candidates, it is done.

`emit_done` is for every run. The others describe single candidates, which is expensive, so they are called only where
`Instance.watched` is true. In all of them `instance` is the operator's own copy: its id, its rounds and its usage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qpdsl.executor.events.events import Candidate, Expanded, OperatorDone, OperatorStarted, Selected, Valued
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.request import Sample
from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.planner.plan import ops
from qpdsl.planner.values.value import Value, format_value

_CUT = "\N{REPLACEMENT CHARACTER}"
# The most tokens that one character is spread over.
_LONGEST = 4


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
    match op:
        case (
            ops.Score(into=column)
            | ops.Judge(into=column)
            | ops.Prob(into=column)
            | ops.LogProb(into=column)
            | ops.DrawScore(into=column)
            | ops.PythonScore(into=column)
            | ops.Equal(into=column)
            | ops.ValidJson(into=column)
            | ops.Passes(into=column)
        ):
            _emit_values(column, after, instance, scores=True)
        case (
            ops.Extract(column=column)
            | ops.PythonExtract(column=column)
            | ops.Let(column=column)
            | ops.Call(into=column)
        ):
            _emit_values(column, after, instance, scores=False)
        case ops.Say():
            _emit_values("step", after, instance, scores=False)
        case ops.Where() | ops.Distinct() | ops.Join() | ops.TopK() | ops.Tournament() | ops.Vote():
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
        case ops.Split():
            emit_copies(after, instance)


def emit_copies(copies: Candidates, instance: Instance) -> None:
    """The rows that an operator copied others to."""
    _emit_expanded(tuple(Candidate(path=row.path) for row in copies), instance)


def emit_expanded(
    after: Sequence[Row], before: Candidates, samples: Sequence[Sample], model: TextModel, instance: Instance
) -> None:
    """The rows that samples made. `samples` are those of the rows in `after` that are not in `before`, in order."""
    paths = {row.path for row in before}
    new = [row for row in after if row.path not in paths]
    _emit_expanded(tuple(_candidate(row, sample, model) for row, sample in zip(new, samples, strict=True)), instance)


def _emit_expanded(candidates: tuple[Candidate, ...], instance: Instance) -> None:
    instance.services.events.emit(
        Expanded(instance=instance.name, operator=instance.operator, rounds=instance.rounds, candidates=candidates)
    )


def _candidate(row: Row, sample: Sample, model: TextModel) -> Candidate:
    pieces = _pieces(sample.tokens, model) if len(sample.logprobs) == len(sample.tokens) else ()
    finish = row.columns.get("finish")
    return Candidate(
        path=row.path,
        step=str(row.columns.get("step") or ""),
        finish=finish if isinstance(finish, str) else None,
        finished=row.generated.finished,
        logprob=row.generated.logprob,
        tokens=sample.size,
        pieces=pieces,
        logprobs=sample.logprobs if pieces else (),
    )


def _pieces(tokens: tuple[int, ...], model: TextModel) -> tuple[str, ...]:
    """The text of each token. A character that is spread over several tokens comes with the last of them."""
    cache = model.pieces
    pieces: list[str] = []
    pending: list[int] = []
    for token in tokens:
        text = cache.get(token) if not pending else None
        if text is None:
            pending.append(token)
            text = model.backend.decode(pending, skip_special_tokens=False)
            if text.endswith(_CUT) and len(pending) < _LONGEST:
                pieces.append("")
                continue
            if len(pending) == 1:
                cache[token] = text
            pending = []
        pieces.append(text)
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

"""What an operator did with the rows of one instance, as events for those who want to see the candidates."""

from __future__ import annotations

import json
from collections.abc import Sequence

from qpdsl.executor.events.events import Candidate, Expanded, OperatorStarted, Selected, Valued
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.request import Sample
from qpdsl.executor.runtime.instance.candidates import Candidates, JsonValue, Row
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Value

_CUT = "\N{REPLACEMENT CHARACTER}"
# The most tokens that one character is spread over.
_LONGEST = 4


def tell_started(rows: int, instance: Instance) -> None:
    instance.services.events.emit(
        OperatorStarted(instance=instance.name, operator=instance.operator, rounds=instance.rounds, rows_in=rows)
    )


def tell_done(op: ops.Operator, given: Candidates, made: Candidates, instance: Instance) -> None:
    """`generate` tells for itself, when it still has the samples."""
    match op:
        case ops.Score(into=column) | ops.Judge(into=column) | ops.LogProb(into=column) | ops.PythonScore(into=column):
            _tell_values(column, made, instance, scores=True)
        case ops.Extract(column=column) | ops.PythonExtract(column=column) | ops.Assign(column=column):
            _tell_values(column, made, instance, scores=False)
        case ops.Where() | ops.TopK() | ops.Vote():
            kept = {row.path for row in made}
            instance.services.events.emit(
                Selected(
                    instance=instance.name,
                    operator=instance.operator,
                    rounds=instance.rounds,
                    kept=tuple(row.path for row in made),
                    dropped=tuple(row.path for row in given if row.path not in kept),
                )
            )
        case ops.Split():
            _emit(tuple(Candidate(path=row.path) for row in made), instance)


def tell_expanded(
    made: Sequence[Row], given: Candidates, samples: Sequence[Sample], model: TextModel, instance: Instance
) -> None:
    """`samples` are those of the rows in `made` that were not given already, in their order."""
    before = {row.path for row in given}
    new = [row for row in made if row.path not in before]
    _emit(tuple(_candidate(row, sample, model) for row, sample in zip(new, samples, strict=True)), instance)


def told(value: JsonValue) -> str:
    """A program's value as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _emit(candidates: tuple[Candidate, ...], instance: Instance) -> None:
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
        tokens=len(sample.tokens),
        pieces=pieces,
        logprobs=sample.logprobs if pieces else (),
    )


def _pieces(tokens: tuple[int, ...], model: TextModel) -> tuple[str, ...]:
    """The text of each token; of a character that is spread over several, with the last of them."""
    known = model.pieces
    pieces: list[str] = []
    open_: list[int] = []
    for token in tokens:
        text = known.get(token) if not open_ else None
        if text is None:
            open_.append(token)
            text = model.backend.decode(open_, skip_special_tokens=False)
            if text.endswith(_CUT) and len(open_) < _LONGEST:
                pieces.append("")
                continue
            if len(open_) == 1:
                known[token] = text
            open_ = []
        pieces.append(text)
    return tuple(pieces)


def _tell_values(column: str, made: Candidates, instance: Instance, *, scores: bool) -> None:
    instance.services.events.emit(
        Valued(
            instance=instance.name,
            operator=instance.operator,
            rounds=instance.rounds,
            column=column,
            paths=tuple(row.path for row in made),
            values=tuple(_scalar(row.columns.get(column)) for row in made),
            scores=scores,
        )
    )


def _scalar(value: Value) -> str | float | bool | None:
    return value if isinstance(value, (str, int, float)) else None

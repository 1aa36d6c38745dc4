"""The events of one operator: it began, it made, scored or dropped candidates, it is done.

`emit_done` is for every run. The others describe single candidates, which is expensive, so they are called only where
`Instance.watched` is true, and describe them only when the stream hands the events on, among many: what they are given
does not change. In all of them `instance` is the operator's own copy: its id, its rounds and its usage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from qpdsl.executor.events.events import (
    Answered,
    Aside,
    CandidateRecord,
    Compared,
    Detail,
    Expanded,
    GivenUp,
    OperatorDone,
    OperatorStarted,
    Path,
    Selected,
    Valued,
    WayTried,
)
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.request import Sample, Writer
from qpdsl.executor.runtime.instance.candidates import FRESH, Candidates, Row
from qpdsl.executor.runtime.instance.instance import Decision, Instance
from qpdsl.executor.runtime.instance.value_sources import ValueSource, ValueSources
from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import made_column
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp, everything
from qpdsl.planner.plan.reads import made_by
from qpdsl.planner.values.value import format_value


def emit_started(rows_in: int, instance: Instance) -> None:
    """The operator begins on that many rows."""
    _tell(_started, instance, rows_in)


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


def emit_tried(
    way: str, support: float | None, next: str | None, tokens: tuple[int, int], seconds: float, instance: Instance
) -> None:
    """A way of a program under a budget ended, which took so many `tokens` (prompt, sampled); `next` follows."""
    instance.services.events.emit(
        WayTried(
            instance=instance.name,
            way=way,
            support=support,
            next=next,
            prompt_tokens=tokens[0],
            sampled_tokens=tokens[1],
            seconds=seconds,
        )
    )


def emit_changes(node: PhysicalOp, before: Candidates, after: Candidates, instance: Instance) -> None:
    """What an operator did to its rows: values set, rows kept and dropped, rows copied.

    `generate` emits its own event, while it has the samples; of operators that contain others this has the columns that
    come from beside the rows.
    """
    _tell(_changes, instance, node, before, after, instance.decision, instance.sources)


def emit_sources(
    node: PhysicalOp, rows: Candidates, ends: Sequence[Row | None], inner: Instance, instance: Instance
) -> None:
    """The rows came to these `ends` beside them, as `inner`, and have values from there: `Answered` is of those."""
    _tell(_sources, instance, node, rows, tuple(ends), inner.aside, instance.sources)


def emit_answered(value: ast.Expr, row: Row, instance: Instance) -> None:
    """The program's value was read from a row: that which its column comes from, where it is one column."""
    _tell(_answered, instance, value, row, instance.sources)


def emit_compared(matches: Sequence[tuple[Row, Row]], chances: Sequence[float], instance: Instance) -> None:
    """Rows played against each other; the chance of the first of each pair."""
    _tell(_compared, instance, tuple(matches), tuple(chances))


def emit_given_up(paths: Sequence[Path], instance: Instance) -> None:
    """Samples that were not waited for."""
    if paths:
        _tell(_given_up, instance, tuple(paths))


def emit_copies(copies: Sequence[Row], instance: Instance) -> None:
    """The rows that an operator copied others to."""
    _tell(_copied, instance, tuple(copies))


class MadeRow(NamedTuple):
    """A row, the sample that made it, and the generated tokens that the sample went on from.

    So many of the sample's tokens were drawn for a `thought`.
    """

    row: Row
    sample: Sample
    earlier: tuple[int, ...]
    thought: int


def emit_expanded(made: Sequence[MadeRow], op: ops.Generate, model: TextModel, instance: Instance) -> None:
    """The rows that samples made."""
    _tell(_expanded, instance, tuple(made), op, model, instance.sources)


def emit_values(column: str, rows: Sequence[Row], instance: Instance, *, scores: bool) -> None:
    """A column of rows was set."""
    _tell(_valued, instance, column, tuple(rows), scores)


# What every `Detail` says: which operator of which instance did it, and when.
_Who = dict[str, Any]


def _tell(make: Callable[..., Iterable[Detail]], instance: Instance, *of: Any) -> None:
    """Emits what an operator did now; its events are made once they are handed on."""
    who = {
        "at": time.monotonic(),
        "instance": instance.name,
        "operator": instance.operator,
        "rounds": instance.rounds,
        "aside": instance.aside,
    }
    instance.services.events.emit(partial(make, who, *of))


def _started(who: _Who, rows_in: int) -> Iterable[Detail]:
    yield OperatorStarted(**who, rows_in=rows_in)


def _changes(
    who: _Who,
    node: PhysicalOp,
    before: Candidates,
    after: Candidates,
    decision: Decision | None,
    sources: ValueSources,
) -> Iterable[Detail]:
    op = node.op
    if isinstance(op, ops.Split):
        parents = dict.fromkeys(row.path[:-1] for row in after)
        if op.by is not None or len(parents) < len(before):
            yield from _selected(who, op, before, parents, decision)
        yield from _copied(who, after)
    elif op.rows in ("fewer", "count", "one") and not isinstance(op, ops.Return):
        yield from _selected(who, op, before, [row.path for row in after], decision)
        if isinstance(op, ops.Join):
            yield from _valued(who, op.column.id, after, scores=False)
    elif isinstance(op, ops.Say):
        yield from _valued(who, "step", after, scores=False)
    elif isinstance(op, (ops.Peek, ops.Ask)):
        scores = {made_column(inner.op) for inner in everything(node.body) if isinstance(inner.op, ops.Score)}
        for name in _columns_from_beside(node):
            yield from _valued(who, name, after, scores=name in scores)
    elif op.rows == "same" and (column := made_column(op)) is not None:
        if not isinstance(op, ops.Call):
            sources.set_here(who["aside"], [row.path for row in after], column)
        yield from _valued(who, column, after, scores=isinstance(op, ops.Score))


def _sources(
    who: _Who, node: PhysicalOp, rows: Candidates, ends: Sequence[Row | None], there: Aside, sources: ValueSources
) -> Iterable[Detail]:
    """No event: remembers which rows the values came from that an operator read beside its rows."""
    if isinstance(node.op, ops.Call):
        value = node.op.value
        read = {made_column(node.op) or "": value.id if isinstance(value, ast.Name) else None}
    else:
        read = {name: name for name in _columns_from_beside(node)}
    for row, end in zip(rows, ends, strict=True):
        for name, source in read.items():
            if end is not None:
                sources.add(ValueSource(who["aside"], row.path, name), ValueSource(there, end.path, source))
    return ()


def _answered(who: _Who, value: ast.Expr, row: Row, sources: ValueSources) -> Iterable[Detail]:
    source = ValueSource(who["aside"], row.path, value.id if isinstance(value, ast.Name) else None)
    if source.column is not None:
        source = sources.of(source)
    yield Answered(**who | {"aside": source.aside}, path=source.path)


def _columns_from_beside(node: PhysicalOp) -> list[str]:
    made = made_by(node.body)
    return [name for name in node.columns if name in made and name not in FRESH]


def _selected(
    who: _Who, op: ops.Operator, before: Candidates, after: Iterable[Path], decision: Decision | None
) -> Iterable[Detail]:
    """Which rows an operator kept, by their paths, of each group by itself."""
    decision = decision or Decision([range(len(before))])
    places = {row.path: place for place, row in enumerate(before)}
    group_of = {place: number for number, group in enumerate(decision.groups) for place in group}
    kept: list[list[int]] = [[] for _ in decision.groups]
    for path in after:
        if (place := places.get(path)) is not None:
            kept[group_of[place]].append(place)
    per = getattr(op, "per", None)
    for group, stay in zip(decision.groups, kept, strict=True):
        standing = set(stay)
        order = [*stay, *(place for place in group if place not in standing)]
        if not order:
            continue
        yield Selected(
            **who,
            kept=tuple(before[place].path for place in stay),
            dropped=tuple(before[place].path for place in order[len(stay) :]),
            group=None if per is None else format_value(before[order[0]].columns.get(per.id)),
            keys=tuple(_scalar(decision.keys[place]) for place in order) if decision.keys else (),
            weights=tuple(decision.weights[place] for place in order) if decision.weights else (),
        )


def _compared(who: _Who, matches: Sequence[tuple[Row, Row]], chances: tuple[float, ...]) -> Iterable[Detail]:
    firsts, seconds = (tuple(match[side].path for match in matches) for side in (0, 1))
    yield Compared(**who, firsts=firsts, seconds=seconds, chances=chances)


def _given_up(who: _Who, paths: tuple[Path, ...]) -> Iterable[Detail]:
    yield GivenUp(**who, paths=paths)


def _copied(who: _Who, copies: Sequence[Row]) -> Iterable[Detail]:
    yield Expanded(**who, candidates=tuple(CandidateRecord(path=row.path) for row in copies))


def _expanded(
    who: _Who, made: Sequence[MadeRow], op: ops.Generate, model: TextModel, sources: ValueSources
) -> Iterable[Detail]:
    if op.into is not None:
        sources.set_here(who["aside"], [one.row.path for one in made], op.into.id)
    yield Expanded(**who, candidates=tuple([_candidate(*one, model) for one in made]))


def _candidate(row: Row, sample: Sample, earlier: tuple[int, ...], thought: int, model: TextModel) -> CandidateRecord:
    text = model.marked_detokenizer
    whole = len(sample.logprobs) == len(sample.tokens)
    pieces = text.pieces(earlier, sample.tokens, tail=row.generated.finished) if whole else ()
    finish = row.columns.get("finish")
    return CandidateRecord(
        path=row.path,
        step=str(row.columns.get("step") or ""),
        finish=finish if isinstance(finish, str) else None,
        finished=row.generated.finished,
        logprob=row.generated.logprob,
        tokens=sample.size,
        pieces=pieces,
        # All are 0 where nobody asked for them.
        logprobs=sample.logprobs if pieces and any(sample.logprobs) else (),
        written=_by_writer(sample.steps.written) if pieces and sample.steps.written else {},
        thought=row.generated.thought.text if thought and not row.generated.thought.open else None,
        thought_tokens=thought,
    )


def _by_writer(written: Sequence[tuple[int, Writer]]) -> dict[str, tuple[int, ...]]:
    return {one: tuple(place for place, writer in written if writer == one) for one in dict(written).values()}


def _valued(who: _Who, column: str, rows: Sequence[Row], scores: bool) -> Iterable[Detail]:
    paths, values = tuple(row.path for row in rows), tuple(_scalar(row.columns.get(column)) for row in rows)
    yield Valued(**who, column=column, paths=paths, values=values, scores=scores)


def _scalar(value: Any) -> str | float | bool | None:
    return format_value(value) if isinstance(value, (tuple, Mapping)) else value

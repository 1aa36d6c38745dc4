"""The `score` operator: step scores by prefill, each content scored once."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from qpdsl.executor.requests.request import ReadRequest
from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Shown, Submissions, Usage
from qpdsl.executor.text.context import ContextError
from qpdsl.executor.verifiers.score_store import ScoreStore
from qpdsl.executor.verifiers.verifier import StepReads, Verifier, reduce_scores
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import ScoreStrategy

_PLAIN = ScoreStrategy()


@dataclass(frozen=True, slots=True)
class _Asked:
    """One text laid out for the verifier; `contents` are digests of what stands up to each of its positions."""

    reads: StepReads
    contents: tuple[bytes, ...]


async def score(
    op: ops.Score, rows: Candidates, instance: Instance, strategy: ScoreStrategy = _PLAIN, id: str = ""
) -> Candidates:
    """Adds the verifier's score of each row's text; none where a row has no step yet. Raises RowError."""
    if strategy.same_as is None:
        await _score(op, rows, instance, strategy, id)
    source = strategy.same_as or id
    made: list[Row] = []
    for row in rows:
        steps = instance.steps.get((source, _shown(row)))
        if op.raw and row.generated.closed and op.into in row.columns:
            made.append(row)
            continue
        made.append(row.with_column(op.into, reduce_scores(steps, op.reduce) if steps else None))
    return tuple(made)


async def _score(op: ops.Score, rows: Candidates, instance: Instance, strategy: ScoreStrategy, id: str) -> None:
    """Fills in `instance.steps` for the rows."""
    verifier = instance.services.verifiers[op.verifier]
    model = instance.services.models[op.verifier].name
    asked: dict[Shown, _Asked] = {}
    for shown in dict.fromkeys(map(_shown, rows)):
        problem, text, system = shown
        try:
            reads = verifier.reads(problem, text, raw=op.raw, system=system)
        except ContextError as error:
            raise RowError(f"verifier `{op.verifier}`: {error}") from error
        if reads is not None:
            asked[shown] = _Asked(reads, _contents(model, reads))
    async with instance.scoring(model):
        await _score_new(verifier, model, list(asked.values()), instance, strategy)
    # What an operator that is the same as this one looks up are these rows; those of earlier rounds are gone.
    for key in [key for key in instance.steps if key[0] == id]:
        del instance.steps[key]
    for shown, each in asked.items():
        instance.steps[id, shown] = tuple(instance.scores[content] for content in each.contents)


def _shown(row: Row) -> Shown:
    assert row.context is not None
    return row.context.problem, row.generated.text, row.context.system


async def _score_new(
    verifier: Verifier, model: str, asked: Sequence[_Asked], instance: Instance, strategy: ScoreStrategy
) -> None:
    """Fills in the scores that are not known; the first score of a content stays."""
    pending: list[tuple[_Asked, tuple[int, ...]]] = []
    claimed: set[bytes] = set()
    usage, store = instance.usage, instance.services.scores if strategy.cache else None
    seen = set(instance.scores)
    with Submissions(instance) as submissions:
        for each in asked:
            missing = _missing(each, claimed, instance, strategy)
            _count(each, missing, seen, usage)
            if not missing:
                continue
            claimed.update(each.contents[at] for at in missing)
            # What a text takes is counted as if no other instance had been scored: a run's counts are its own.
            asked_for = each.reads.positions[missing[-1]] + 1
            usage.prompt_tokens += asked_for
            missing = _left_by(store, each, missing, instance)
            positions = tuple(each.reads.positions[at] for at in missing)
            tokens = each.reads.tokens[: positions[-1] + 1] if positions else ()
            usage.cached_tokens += asked_for - len(tokens)
            if positions:
                submissions.submit(model, ReadRequest(tokens, positions, each.reads.ids, cached=strategy.share))
                pending.append((each, missing))
        completions = await submissions.completions()
    for (each, missing), completion in zip(pending, completions, strict=True):
        for at, logits in zip(missing, completion.logits, strict=True):
            found = instance.scores.setdefault(each.contents[at], verifier.score(logits))
            if store is not None:
                store.put(each.contents[at], found)
    instance.scored.update(each.contents[-1] for each in asked)


def _count(each: _Asked, missing: Sequence[int], seen: Collection[bytes], usage: Usage) -> None:
    """Counts a text: `seen` are the contents that this instance had scored before."""
    positions = each.reads.positions
    known = sum(1 for content in each.contents if content in seen)
    counts = usage.counts
    counts["texts"] += 1
    counts["texts_known"] += not missing
    counts["text_tokens"] += positions[-1] + 1
    counts["first_tokens"] += positions[0]
    counts["new_tokens"] += positions[-1] - positions[known - 1] if known else positions[-1] + 1
    counts["steps"] += len(each.contents)
    counts["steps_known"] += len(each.contents) - len(missing)


def _missing(each: _Asked, claimed: set[bytes], instance: Instance, strategy: ScoreStrategy) -> tuple[int, ...]:
    """The steps, by number, that are to be read: all of a text that is not known as a whole, or those not known."""
    if not strategy.cache:
        return () if each.contents[-1] in instance.scored else tuple(range(len(each.contents)))
    return tuple(
        at for at, content in enumerate(each.contents) if content not in instance.scores and content not in claimed
    )


def _left_by(store: ScoreStore | None, each: _Asked, missing: tuple[int, ...], instance: Instance) -> tuple[int, ...]:
    """Those of the missing steps that no other instance had scored; the scores of the rest are taken over."""
    if store is None:
        return missing
    found = {at: score for at in missing if (score := store.get(each.contents[at])) is not None}
    instance.scores.update({each.contents[at]: score for at, score in found.items()})
    return tuple(at for at in missing if at not in found)


def _contents(model: str, reads: StepReads) -> tuple[bytes, ...]:
    state = blake2b(model.encode("utf-8", "backslashreplace") + b"\0", digest_size=16)
    found, start = [], 0
    for position in reads.positions:
        state.update(array("q", reads.tokens[start : position + 1]).tobytes())
        start = position + 1
        found.append(state.digest())
    return tuple(found)

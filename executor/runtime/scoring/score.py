"""The `score` operators that need no function: a verifier's step scores by prefill, and the row's log-probability.

A step is known by a digest of the model and of all tokens up to its position, so equal content is scored once.

`draw_score` says how sure the model was of what it wrote, of figures that the engine reported of each draw.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

from qpdsl.executor.requests.drawing import ConfidenceWindow
from qpdsl.executor.requests.request import ReadRequest
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.runtime.instance.candidates import Candidates, Row, Written
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Submissions, Usage, VerifierInput
from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.context import read_beside
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS, ScoreStore, StepReads, Verifier, reduce_scores
from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import ScoreStrategy
from qpdsl.planner.values.value import format_value

_PLAIN = ScoreStrategy()


@dataclass(frozen=True, slots=True)
class _Layout:
    """One text laid out for the verifier, with one digest for each position: of what stands up to it."""

    reads: StepReads
    digests: tuple[bytes, ...]


async def score(
    op: ops.StepScore, rows: Candidates, instance: Instance, strategy: ScoreStrategy = _PLAIN
) -> Candidates:
    """Adds the verifier's score of each row's text.

    None where a row has no step yet, where its problem or its text is none, or where both are longer than the
    verifier's context: such rows are counted. Raises RowError where the verifier cannot lay a text out.
    """
    inputs = verifier_inputs(op, rows, instance)
    if strategy.same_as is None:
        await _score_steps(op, inputs, instance, strategy)
    source = strategy.same_as or instance.operator
    steps = [None if given is None else instance.steps.get((source, given)) for given in inputs]
    if too_long := steps.count(()):
        instance.usage.counts["unscored"] += too_long
    return tuple(_with_score(op, row, scores) for row, scores in zip(rows, steps, strict=True))


def _with_score(op: ops.StepScore, row: Row, steps: tuple[float, ...] | None) -> Row:
    if op.raw and row.generated.closed and op.made in row.columns:
        return row
    return row.with_column(op.made, reduce_scores(steps, str(op.reduce)) if steps else None)


async def score_steps_ahead(
    op: ops.StepScore, texts: Sequence[tuple[Row, str]], instance: Instance, strategy: ScoreStrategy
) -> list[float | None]:
    """What the scores of whole steps come to, of texts that go on; each row is the one that its text is added to.

    None where nothing of it would be known again once the text is whole. Raises EngineError.
    """
    verifier, served = instance.services.verifiers[op.verifier.name], instance.services.models[op.verifier.name]
    exact = instance.services.engine.capabilities(served.name).repeats == "exact"
    layouts: list[_Layout | None] = [None] * len(texts)
    problems = instance.problems([row for row, _ in texts], op.given)
    for number, ((row, text), problem) in enumerate(zip(texts, problems, strict=True)):
        if not exact or problem is None or not verifier.steps_stay:
            continue
        system = "" if row.context is None else row.context.system
        try:
            read = partial(verifier.reads_ahead, problem, text, system=system)
            reads = await read_beside(len(problem) + len(text) + len(system), read)
        except ContextError:
            # What the whole text comes to is said when it is scored.
            continue
        if reads is not None and reads.positions[-1] < served.most_read:
            layouts[number] = _Layout(reads, _digests(served.name, reads))
    async with instance.scoring(served.name):
        known = list({layout.digests[-1]: layout for layout in layouts if layout is not None}.values())
        await _read_scores(verifier, served.name, known, instance, strategy, whole=False)
    return [
        None
        if layout is None
        else reduce_scores([instance.scores[digest] for digest in layout.digests], str(op.reduce))
        for layout in layouts
    ]


async def log_prob(op: ops.LogProb, rows: Candidates, instance: Instance) -> Candidates:
    """The sum over the sampled tokens, their mean or the least; None for the latter two of a row without any.

    With `of`, those that a call wrote into that column; none where no call did.
    """
    return tuple(row.with_column(op.made, _log_prob(op, row)) for row in rows)


def _log_prob(op: ops.LogProb, row: Row) -> float | None:
    generated = row.generated if op.of is None else _written(op.of, row)
    if generated is None:
        return None
    if op.reduce == "sum":
        return round(generated.logprob, SCORE_DIGITS)
    if not generated.sampled or generated.least is None:
        return None
    mean = generated.logprob / generated.sampled
    return round(generated.least if op.reduce == "min" else mean, SCORE_DIGITS)


def _written(of: ast.Expr, row: Row) -> Written | None:
    """What is known of the draws of a column; None in a row where no call wrote it."""
    assert isinstance(of, ast.Name)
    return row.generated.written.get(of.id)


async def _score_steps(
    op: ops.StepScore, inputs: Sequence[VerifierInput | None], instance: Instance, strategy: ScoreStrategy
) -> None:
    """Fills in `instance.steps` for the inputs."""
    verifier = instance.services.verifiers[op.verifier.name]
    model, most = instance.services.models[op.verifier.name].name, instance.services.models[op.verifier.name].most_read
    layouts: dict[VerifierInput, _Layout] = {}
    too_long: list[VerifierInput] = []
    for verifier_input in dict.fromkeys(given for given in inputs if given is not None):
        problem, text, system = verifier_input
        try:
            read = partial(verifier.reads, problem, text, raw=op.raw, system=system)
            reads = await read_beside(len(problem) + len(text) + len(system), read)
        except ContextError as error:
            raise RowError(f"verifier `{op.verifier.name}`: {error}") from error
        if reads is not None and reads.positions[-1] >= most:
            too_long.append(verifier_input)
        elif reads is not None:
            layouts[verifier_input] = _Layout(reads, _digests(model, reads))
    async with instance.scoring(model):
        await _read_scores(verifier, model, list(layouts.values()), instance, strategy)
    # An operator with the same scores as this one looks up these rows only; those of earlier rounds are gone.
    for key in [key for key in instance.steps if key[0] == instance.operator]:
        del instance.steps[key]
    for verifier_input, layout in layouts.items():
        scores = tuple(instance.scores[digest] for digest in layout.digests)
        instance.steps[instance.operator, verifier_input] = scores
    for verifier_input in too_long:
        instance.steps[instance.operator, verifier_input] = ()


def verifier_inputs(op: ops.StepScore, rows: Candidates, instance: Instance) -> list[VerifierInput | None]:
    """What the verifier is shown of each row, None where the problem or the text is none."""
    shown = zip(rows, instance.problems(rows, op.given), scored_texts(op.of, rows, instance), strict=True)
    return [
        None if problem is None or text is None else (problem, text, "" if row.context is None else row.context.system)
        for row, problem, text in shown
    ]


async def _read_scores(
    verifier: Verifier,
    model: str,
    layouts: Sequence[_Layout],
    instance: Instance,
    strategy: ScoreStrategy,
    *,
    whole: bool = True,
) -> None:
    """Fills in `instance.scores` where they are not known; the first score of a digest stays.

    Texts that are not `whole` are not counted: they come again.
    """
    pending: list[tuple[_Layout, tuple[int, ...], Ticket]] = []
    claimed: set[bytes] = set()
    # What a server says of a text may change with what it computes beside it.
    exact = instance.services.engine.capabilities(model).repeats == "exact"
    usage, store = instance.usage, instance.services.scores if strategy.cache and exact else None
    known = set(instance.scores)
    with Submissions(instance) as submissions:
        for layout in layouts:
            missing = _missing_steps(layout, claimed, instance, strategy)
            if whole:
                _count_text(layout, missing, known, usage)
            if not missing:
                continue
            claimed.update(layout.digests[step] for step in missing)
            # A text's tokens are counted as if no other instance had scored it: a run's counts depend on it alone.
            tokens_needed = layout.reads.positions[missing[-1]] + 1
            missing = _take_stored(store, layout, missing, instance)
            positions = tuple(layout.reads.positions[step] for step in missing)
            tokens = layout.reads.tokens[: positions[-1] + 1] if positions else ()
            usage.read_before(tokens_needed - len(tokens))
            if positions:
                request = ReadRequest(tokens, positions, layout.reads.ids, cached=strategy.share)
                pending.append((layout, missing, submissions.submit(model, request)))
        completions = await submissions.completions()
    for (layout, missing, ticket), completion in zip(pending, completions, strict=True):
        seconds = ticket.seconds / len(missing)
        for step, logits in zip(missing, completion.logits, strict=True):
            step_score = instance.scores.setdefault(layout.digests[step], verifier.score(logits))
            if store is not None:
                store.put(layout.digests[step], step_score, seconds)
    instance.scored.update(layout.digests[-1] for layout in layouts)


def _count_text(layout: _Layout, missing: Sequence[int], known: Collection[bytes], usage: Usage) -> None:
    """Counts a text. `known` are the digests of what this instance had scored before."""
    positions = layout.reads.positions
    known_steps = sum(1 for digest in layout.digests if digest in known)
    counts = usage.counts
    counts["texts"] += 1
    counts["texts_known"] += not missing
    counts["text_tokens"] += positions[-1] + 1
    counts["first_tokens"] += positions[0]
    counts["new_tokens"] += positions[-1] - positions[known_steps - 1] if known_steps else positions[-1] + 1
    counts["steps"] += len(layout.digests)
    counts["steps_known"] += len(layout.digests) - len(missing)


def _missing_steps(
    layout: _Layout, claimed: set[bytes], instance: Instance, strategy: ScoreStrategy
) -> tuple[int, ...]:
    """The steps to read, by number: with a cache those not known, else all of a text that is not known as a whole."""
    if not strategy.cache:
        return () if layout.digests[-1] in instance.scored else tuple(range(len(layout.digests)))
    return tuple(
        step for step, digest in enumerate(layout.digests) if digest not in instance.scores and digest not in claimed
    )


def _take_stored(
    store: ScoreStore | None, layout: _Layout, missing: tuple[int, ...], instance: Instance
) -> tuple[int, ...]:
    """Takes over the scores that other instances left in the store; the steps that are still missing.

    They count the seconds that they took then.
    """
    if store is None:
        return missing
    stored = {step: value for step in missing if (value := store.get(layout.digests[step])) is not None}
    instance.scores.update({layout.digests[step]: value.score for step, value in stored.items()})
    instance.usage.engine_seconds += sum(value.seconds for value in stored.values())
    if stored:
        instance.usage.counts["shared_scores"] += len(stored)
    return tuple(step for step in missing if step not in stored)


def _digests(model: str, reads: StepReads) -> tuple[bytes, ...]:
    state = blake2b(model.encode("utf-8", "backslashreplace") + b"\0", digest_size=16)
    digests, start = [], 0
    for position in reads.positions:
        state.update(array("q", reads.tokens[start : position + 1]).tobytes())
        start = position + 1
        digests.append(state.digest())
    return tuple(digests)


def scored_texts(of: ast.Expr | None, rows: Candidates, instance: Instance) -> list[str | None]:
    """The text of each row; None where the value of `of` is none."""
    if of is None:
        return [row.generated.text for row in rows]
    return [None if value is None else format_value(value) for value in instance.values(of, rows)]


async def draw_score(op: ops.DrawScore, rows: Candidates, instance: Instance) -> Candidates:
    """None where nothing was sampled there, or a part of it was not drawn token by token. Raises RowError.

    A confidence is also none where the model had no choice at any token.
    """
    window = ast.USUAL_WINDOW if op.window is None else instance.whole("window", op.window)
    return tuple(row.with_column(op.made, _draw_score(op, row, window)) for row in rows)


def _draw_score(op: ops.DrawScore, row: Row, window: int) -> float | None:
    generated = row.generated
    drawn, thought = generated.figures or (), generated.thought
    if isinstance(op.of, ast.Name):
        written = row.generated.written.get(op.of.id)
        parts = {"thought": thought.figures, "text": drawn[thought.before :]}
        drawn = parts.get(op.of.id) or (() if written is None else written.figures)
    values: list[float] = [getattr(figures, op.kind) for figures in drawn]
    if op.kind == "confidence":
        values = group_means(values, window)
    if not values:
        return None
    made = {"min": min(values), "last": values[-1], "mean": sum(values) / len(values)}
    return round(made[str(op.reduce)], SCORE_DIGITS)


def group_means(values: Sequence[float], window: int) -> list[float]:
    """The mean of each run of `window` confidences; that of all where there are fewer."""
    window = min(window, sum(value != 0 for value in values))
    group = ConfidenceWindow(window)
    return [mean for value in values if (mean := group.push(value)) is not None]

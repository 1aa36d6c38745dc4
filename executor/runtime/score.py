"""The `score` operator: step scores by prefill, each content scored once."""

from __future__ import annotations

from qpdsl.executor.engine.request import ReadRequest
from qpdsl.executor.reward.verifier import StepReads, Verifier, reduce_scores
from qpdsl.executor.runtime.candidates import Candidates
from qpdsl.executor.runtime.context import ContextError
from qpdsl.executor.runtime.instance import Instance, RowError, Submissions
from qpdsl.planner import ops


async def score(op: ops.Score, rows: Candidates, instance: Instance) -> Candidates:
    """Adds the verifier's score of each row's text; none where a row has no step yet. Raises RowError."""
    verifier = instance.services.verifiers[op.verifier]
    model = instance.services.models[op.verifier]
    reads: list[StepReads | None] = []
    for row in rows:
        assert row.context is not None
        try:
            reads.append(verifier.reads(row.context.problem, row.generated.text))
        except ContextError as error:
            raise RowError(f"verifier `{op.verifier}`: {error}") from error

    async with instance.scoring(model.name):
        await _score_new(verifier, model.name, [read for read in reads if read is not None], instance)
    return tuple(
        row.with_column(
            op.into,
            None
            if read is None
            else reduce_scores([instance.scores[_prefix(model.name, read, at)] for at in read.positions], op.reduce),
        )
        for row, read in zip(rows, reads, strict=True)
    )


async def _score_new(verifier: Verifier, model: str, reads: list[StepReads], instance: Instance) -> None:
    """Fills in the scores that no text before had at the same place."""
    pending: list[tuple[StepReads, tuple[int, ...]]] = []
    claimed = set(instance.scores)
    with Submissions(instance) as submissions:
        for read in reads:
            missing = tuple(at for at in read.positions if _prefix(model, read, at) not in claimed)
            if missing:
                claimed.update(_prefix(model, read, at) for at in missing)
                tokens = read.tokens[: missing[-1] + 1]
                submissions.submit(model, ReadRequest(tokens, missing, read.ids))
                instance.usage.prompt_tokens += len(tokens)
                pending.append((read, missing))
        completions = await submissions.completions()
    for (read, missing), completion in zip(pending, completions, strict=True):
        for at, logits in zip(missing, completion.logits, strict=True):
            instance.scores[_prefix(model, read, at)] = verifier.score(logits)


def _prefix(model: str, read: StepReads, position: int) -> tuple[str, tuple[int, ...]]:
    return model, read.tokens[: position + 1]

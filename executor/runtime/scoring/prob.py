"""The `score prob(…)` operator: how probable an answer to a question is, to a model that is asked."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qpdsl.executor.runtime.instance.candidates import Candidates
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.executor.runtime.scoring.answers import answer_logprobs
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import ScoreStrategy
from qpdsl.planner.values.value import format_value


async def prob(op: ops.Prob, rows: Candidates, instance: Instance, strategy: ScoreStrategy) -> Candidates:
    """The probability of the first answer: among all of them where there are several, else by itself.

    None where question and answers do not fit into the model's context; such rows are counted. Raises RowError where
    the model cannot be asked.
    """
    texts = [map(format_value, instance.values(template, rows)) for template in (op.question, *op.answers)]
    questions = [(question, answers) for question, *answers in zip(*texts, strict=True)]
    asked = [(question, tuple(answers)) for question, answers in questions]
    found = await answer_logprobs(op.model, asked, instance, strategy, f"`score prob({op.model}, …)`")
    scores = [None if logprobs is None else round(_first(logprobs), SCORE_DIGITS) for logprobs in found]
    return tuple(row.with_column(op.into, score) for row, score in zip(rows, scores, strict=True))


def _first(logprobs: Sequence[float]) -> float:
    return shares(logprobs)[0] if len(logprobs) > 1 else math.exp(logprobs[0])


def shares(logprobs: Sequence[float]) -> list[float]:
    """The probabilities of answers, such that they sum to 1."""
    most = max(logprobs)
    if most == -math.inf:
        return [1 / len(logprobs)] * len(logprobs)
    weights = [math.exp(logprob - most) for logprob in logprobs]
    return [weight / sum(weights) for weight in weights]

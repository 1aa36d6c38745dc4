"""The `score judge(…)` operator: a model is shown the text and a rubric, and its answer's first number is the score."""

from __future__ import annotations

import re

from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Submissions
from qpdsl.executor.text.context import Context, ContextError, encode
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate, format_value
from qpdsl.planner.plan.physical import ScoreStrategy

_ANSWER_TOKENS = 16
_PLAIN = ScoreStrategy()
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


async def judge(op: ops.Judge, rows: Candidates, instance: Instance, strategy: ScoreStrategy = _PLAIN) -> Candidates:
    """Asks once for each question, greedily; the score is None where the answer has no number.

    Raises RowError where the judge cannot be asked.
    """
    model = instance.services.models[op.model]
    questions = [_question(op, row, instance) for row in rows]
    async with instance.scoring(f"judge {model.name}"):
        new = [text for text in dict.fromkeys(questions) if ("judge", model.name, text) not in instance.judged]
        with Submissions(instance) as submissions:
            for text in new:
                try:
                    prompt = encode(model.tokenizer, Context(turns=(("user", text),)))
                except ContextError as error:
                    raise RowError(f"judge `{op.model}`: {error}") from error
                greedy = SamplingParams(0.0)
                request = GenerateRequest(prompt, (0,), greedy, _ANSWER_TOKENS, model.eos, cached=strategy.share)
                submissions.submit(model.name, request)
                instance.usage.prompt_tokens += len(prompt)
            for text, completion in zip(new, await submissions.completions(), strict=True):
                (sample,) = completion.samples
                instance.usage.sampled_tokens += len(sample.tokens)
                instance.usage.near_ties += sample.near_ties
                instance.judged["judge", model.name, text] = _first_number(model.decode(sample.tokens))
    return tuple(
        row.with_column(op.into, instance.judged["judge", model.name, text])
        for row, text in zip(rows, questions, strict=True)
    )


def _question(op: ops.Judge, row: Row, instance: Instance) -> str:
    """The one user turn that the judge sees."""
    assert row.context is not None
    rubric = format_value(evaluate(op.rubric, instance.scope(row)))
    return f"{row.context.problem}\n\n{row.generated.text}\n\n{rubric}\n\nAnswer with one number."


def _first_number(answer: str) -> float | None:
    match = _NUMBER.search(answer)
    return None if match is None else round(float(match.group()), SCORE_DIGITS)

"""The `score judge(…)` operator: a model is shown the text and a rubric, and answers with a number of the scale."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Submissions
from qpdsl.executor.text.constraint import ConstraintError
from qpdsl.executor.text.context import Context, ContextError, encode
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate, format_value
from qpdsl.planner.plan.physical import ScoreStrategy

# More than any number of a scale takes.
_ANSWER_TOKENS = 16
_PLAIN = ScoreStrategy()


async def judge(op: ops.Judge, rows: Candidates, instance: Instance, strategy: ScoreStrategy = _PLAIN) -> Candidates:
    """Asks once for each question, greedily, and holds the answer to the whole numbers of the scale.

    The score is None where a row's problem is none, or where the question or the answer does not fit into the model's
    context: such rows are counted. Raises RowError where the judge cannot be asked.
    """
    model = instance.services.models[op.model]
    questions = [_question(op, row, instance) for row in rows]
    keys = [None if question is None else ("judge", model.name, question) for question in questions]
    async with instance.scoring(f"judge {model.name}"):
        new = [key for key in dict.fromkeys(keys) if key is not None and key not in instance.judged]
        try:
            mask = model.constrainer.masks("regex", "|".join(map(str, range(op.low, op.high + 1))))
            prompts = {key: encode(model.tokenizer, Context(turns=(("user", key[2]),))) for key in new}
        except (ContextError, ConstraintError) as error:
            raise RowError(f"judge `{op.model}`: {error}") from error
        asked = [key for key in new if len(prompts[key]) < model.max_positions]
        instance.judged.update(dict.fromkeys(set(new).difference(asked)))
        with Submissions(instance) as submissions:
            for key in asked:
                prompt = prompts[key]
                request = GenerateRequest(
                    prompt, (0,), SamplingParams(0.0), _ANSWER_TOKENS, model.eos, mask=mask, cached=strategy.share
                )
                submissions.submit(model.name, request)
                instance.usage.prompt_tokens += len(prompt)
            for key, completion in zip(asked, await submissions.completions(), strict=True):
                (sample,) = completion.samples
                instance.usage.sampled_tokens += len(sample.tokens)
                instance.usage.near_ties += sample.near_ties
                answer = _answer(sample, model.eos)
                instance.judged[key] = None if answer is None else float(model.decode(answer))
    marks = [None if key is None else instance.judged[key] for key in keys]
    if unscored := sum(key is not None and mark is None for key, mark in zip(keys, marks, strict=True)):
        instance.usage.counts["unscored"] += unscored
    return tuple(row.with_column(op.into, mark) for row, mark in zip(rows, marks, strict=True))


def _question(op: ops.Judge, row: Row, instance: Instance) -> str | None:
    """The one user turn that the judge sees; None where the row's problem is none."""
    problem = instance.problem(row, op.given)
    if problem is None:
        return None
    rubric = format_value(evaluate(op.rubric, instance.scope(row)))
    scale = f"Answer with one whole number from {op.low} to {op.high}."
    return f"{problem}\n\n{row.generated.text}\n\n{rubric}\n\n{scale}"


def _answer(sample: Sample, eos: AbstractSet[int]) -> tuple[int, ...] | None:
    """The tokens of a number of the scale; None where the sample was cut off before it was one."""
    if sample.finish not in ("eos", "match"):
        return None
    return tuple(token for token in sample.tokens if token not in eos)

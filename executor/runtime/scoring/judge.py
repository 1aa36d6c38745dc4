"""The `score judge(…)` operator: a model is asked about a row, and answers with a number of a scale.

The mean of the scale under the model's probabilities tells more apart than its likeliest number (Liu et al., "G-Eval",
2023, section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from qpdsl.executor.requests.request import Constraint, GenerateRequest, Sample, SamplingParams
from qpdsl.executor.runtime.instance.candidates import Candidates
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Submissions
from qpdsl.executor.runtime.scoring.answers import answer_logprobs
from qpdsl.executor.runtime.scoring.prob import shares
from qpdsl.executor.runtime.scoring.scored_texts import scored_texts
from qpdsl.executor.text.constraint import ConstraintError
from qpdsl.executor.text.context import Context, ContextError, encode
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import ScoreStrategy
from qpdsl.planner.values.value import format_value

# More than any number of a scale takes.
_ANSWER_TOKENS = 16
_PLAIN = ScoreStrategy()


async def judge(op: ops.Judge, rows: Candidates, instance: Instance, strategy: ScoreStrategy = _PLAIN) -> Candidates:
    """Asks once for each question, and holds the answer to the whole numbers of the scale.

    The score is None where a row's problem or text is none, or where the question or the answer does not fit into the
    model's context: such rows are counted. Raises RowError where the judge cannot be asked.
    """
    questions = _questions(op, rows, instance)
    marks = await (_expected if op.reduce == "expected" else _answered)(op, questions, instance, strategy)
    return tuple(row.with_column(op.into, mark) for row, mark in zip(rows, marks, strict=True))


async def _expected(
    op: ops.Judge, questions: Sequence[str | None], instance: Instance, strategy: ScoreStrategy
) -> list[float | None]:
    """The mean of the numbers of the scale, each weighed by its probability among them."""
    scale = range(op.low, op.high + 1)
    answers = tuple(map(str, scale))
    asked = [None if question is None else (question, answers) for question in questions]
    found = await answer_logprobs(op.model, asked, instance, strategy, f"judge `{op.model}`")
    return [
        None
        if logprobs is None
        else round(sum(mark * share for mark, share in zip(scale, shares(logprobs), strict=True)), SCORE_DIGITS)
        for logprobs in found
    ]


async def _answered(
    op: ops.Judge, questions: Sequence[str | None], instance: Instance, strategy: ScoreStrategy
) -> list[float | None]:
    """The number that is answered greedily."""
    model = instance.services.models[op.model]
    scale = f"{op.low}..{op.high}"
    keys = [None if question is None else ("judge", model.name, scale, question) for question in questions]
    async with instance.scoring(f"judge {model.name}"):
        new = [key for key in dict.fromkeys(keys) if key is not None and key not in instance.judged]
        try:
            answers = "|".join(map(str, range(op.low, op.high + 1)))
            mask = model.constrainer.masks("regex", answers)
            prompts = {key: encode(model.tokenizer, Context(turns=(("user", key[-1]),))) for key in new}
        except (ContextError, ConstraintError) as error:
            raise RowError(f"judge `{op.model}`: {error}") from error
        asked = [key for key in new if len(prompts[key]) < model.max_positions]
        instance.judged.update(dict.fromkeys(set(new).difference(asked)))
        with Submissions(instance) as submissions:
            for key in asked:
                prompt = prompts[key]
                request = GenerateRequest(
                    prompt,
                    (0,),
                    SamplingParams(0.0),
                    _ANSWER_TOKENS,
                    model.eos,
                    mask=mask,
                    cached=strategy.share,
                    constraint=Constraint("regex", answers),
                )
                submissions.submit(model.name, request)
                instance.usage.prompt_tokens += len(prompt)
            for key, completion in zip(asked, await submissions.completions(), strict=True):
                (sample,) = completion.samples
                instance.usage.sampled_tokens += sample.size
                instance.usage.near_ties += sample.near_ties
                answer = _answer(sample, model.eos)
                instance.judged[key] = None if answer is None else float(model.decode(answer))
    marks = [None if key is None else instance.judged[key] for key in keys]
    if unscored := sum(key is not None and mark is None for key, mark in zip(keys, marks, strict=True)):
        instance.usage.counts["unscored"] += unscored
    return [mark if isinstance(mark, float) else None for mark in marks]


def _questions(op: ops.Judge, rows: Candidates, instance: Instance) -> list[str | None]:
    """The one user turn that the judge sees of each row; None where the row's problem or text is none."""
    rubrics = list(map(format_value, instance.values(op.rubric, rows)))
    if op.whole:
        return list(rubrics)
    scale = f"Answer with one whole number from {op.low} to {op.high}."
    shown = zip(instance.problems(rows, op.given), scored_texts(op.of, rows, instance), rubrics, strict=True)
    return [
        None if problem is None or text is None else f"{problem}\n\n{text}\n\n{rubric}\n\n{scale}"
        for problem, text, rubric in shown
    ]


def _answer(sample: Sample, eos: AbstractSet[int]) -> tuple[int, ...] | None:
    """The tokens of a number of the scale; None where the sample was cut off before it was one."""
    if sample.finish not in ("eos", "match"):
        return None
    return tuple(token for token in sample.tokens if token not in eos)

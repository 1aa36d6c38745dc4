"""The operators that ask a model about rows, and read the probabilities that it gives to answers.

`score judge(…)`: a number of a scale. The mean of the scale under the model's probabilities tells more apart than its
likeliest number (Liu et al., "G-Eval", 2023, section 2). `score prob(…)`: how probable an answer to a question is.
`best by compare(…)`: a knockout tournament in which a model says which of two rows is better. A model favours what it
is shown first (Zheng et al., "Judging LLM-as-a-Judge", 2023, section 3.3), so a match is asked about in both orders.

The probability of an answer is that of its tokens and of the end after it, as in `choice`. All answers of a question
are read in one pass over the tree of their tokens, in which what they begin with alike is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import combinations, islice

from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.request import (
    GenerateRequest,
    LogProbRequest,
    Sample,
    SampleConstraint,
    SamplingParams,
    TreeRequest,
)
from qpdsl.executor.runtime.generate.turn import prompt_of
from qpdsl.executor.runtime.instance.candidates import Candidates, Row
from qpdsl.executor.runtime.instance.instance import Decision, Instance, RowError, Submissions
from qpdsl.executor.runtime.instance.operator_events import emit_compared
from qpdsl.executor.runtime.operators.relational import grouped
from qpdsl.executor.runtime.scoring.score import scored_texts
from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.constraint import ConstraintError
from qpdsl.executor.text.context import read_beside
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS
from qpdsl.grammar.words import COMPARED
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.physical import ScoreStrategy
from qpdsl.planner.values.value import Value, format_value

# More than any number of a scale takes.
_ANSWER_TOKENS = 16
_PLAIN = ScoreStrategy()
_ANSWERS = ("A", "B")
# A question, which is a whole user turn, and the texts that could answer it.
Question = tuple[str, tuple[str, ...]]


async def judge(op: ops.Judge, rows: Candidates, instance: Instance, strategy: ScoreStrategy = _PLAIN) -> Candidates:
    """Asks once for each question, and holds the answer to the whole numbers of the scale.

    The score is None where a row's problem or text is none, or where the question or the answer does not fit into the
    model's context: such rows are counted. Raises RowError where the judge cannot be asked.
    """
    questions = _questions(op, rows, instance)
    marks = await (_expected if op.reduce == "expected" else _answered)(op, questions, instance, strategy)
    return tuple(row.with_column(op.made, mark) for row, mark in zip(rows, marks, strict=True))


async def _expected(
    op: ops.Judge, questions: Sequence[str | None], instance: Instance, strategy: ScoreStrategy
) -> list[float | None]:
    """The mean of the numbers of the scale, each weighed by its probability among them."""
    scale = range(op.low, op.high + 1)
    answers = tuple(map(str, scale))
    asked = [None if question is None else (question, answers) for question in questions]
    found = await answer_logprobs(op.model.name, asked, instance, strategy, f"judge `{op.model.name}`")
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
    model = instance.services.models[op.model.name]
    scale = f"{op.low}..{op.high}"
    keys = [None if question is None else ("judge", model.name, scale, question) for question in questions]
    async with instance.scoring(f"judge {model.name}"):
        new = [key for key in dict.fromkeys(keys) if key is not None and key not in instance.judged]
        try:
            answers = "|".join(map(str, range(op.low, op.high + 1)))
            mask = model.constrainer.masks("regex", answers)
            prompts = {key: await _asking(model, key[-1]) for key in new}
        except (ContextError, ConstraintError) as error:
            raise RowError(f"judge `{op.model.name}`: {error}") from error
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
                    constraint=SampleConstraint("regex", answers),
                )
                submissions.submit(model.name, request)
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


async def prob(op: ops.Prob, rows: Candidates, instance: Instance, strategy: ScoreStrategy) -> Candidates:
    """The probability of the first answer: among all of them where there are several, else by itself.

    None where an answer is none, and where they do not fit into the model's context: those are counted. Raises RowError
    where the model cannot be asked.
    """
    shown = [instance.values(template, rows) for template in (op.question, *op.answers)]
    asked = [
        None if None in answers else (format_value(question), tuple(map(format_value, answers)))
        for question, *answers in zip(*shown, strict=True)
    ]
    found = await answer_logprobs(op.model.name, asked, instance, strategy, f"`score prob({op.model.name}, …)`")
    scores = [None if logprobs is None else round(_first(logprobs), SCORE_DIGITS) for logprobs in found]
    return tuple(row.with_column(op.made, score) for row, score in zip(rows, scores, strict=True))


async def likelihood(op: ops.Likelihood, rows: Candidates, instance: Instance, strategy: ScoreStrategy) -> Candidates:
    """The log-probability of a text as the answer: the sum over its tokens, their mean, or the least.

    None for a text that is empty or none, and where both do not fit into the model's context: those are counted. Raises
    RowError where the model cannot be asked.
    """
    model, (text,) = instance.services.models[op.model.name], op.answers
    keys = [
        None if text in (None, "") else ("likelihood", model.name, format_value(question), format_value(text))
        for question, text in zip(instance.values(op.question, rows), instance.values(text, rows), strict=True)
    ]
    async with instance.scoring(f"likelihood {model.name}"):
        prompts = await _prompts(keys, model, instance, f"`score likelihood({op.model.name}, …)`")
        targets = {key: tuple(model.encode_after((), key[3])) for key in prompts}
        fitting = [key for key in prompts if len(prompts[key]) + len(targets[key]) <= model.most_read]
        with Submissions(instance) as submissions:
            for key in fitting:
                request = LogProbRequest(prompts[key], targets[key], cached=strategy.share)
                submissions.submit(model.name, request)
            completions = await submissions.completions()
        instance.judged.update(dict.fromkeys(set(prompts).difference(fitting)))
        instance.judged.update({key: completion.logprobs for key, completion in zip(fitting, completions, strict=True)})
    found = [None if key is None else _figures(instance.judged[key]) for key in keys]
    if unscored := sum(key is not None and figures is None for key, figures in zip(keys, found, strict=True)):
        instance.usage.counts["unscored"] += unscored
    scores = [None if logprobs is None else _reduced(logprobs, str(op.reduce)) for logprobs in found]
    return tuple(row.with_column(op.made, score) for row, score in zip(rows, scores, strict=True))


def _reduced(logprobs: Sequence[float], reduce: str) -> float:
    total = math.fsum(logprobs)
    return round({"sum": total, "mean": total / len(logprobs), "min": min(logprobs)}[reduce], SCORE_DIGITS)


def _first(logprobs: Sequence[float]) -> float:
    return shares(logprobs)[0] if len(logprobs) > 1 else math.exp(logprobs[0])


def shares(logprobs: Sequence[float]) -> list[float]:
    """The probabilities of answers, such that they sum to 1."""
    most = max(logprobs)
    if most == -math.inf:
        return [1 / len(logprobs)] * len(logprobs)
    weights = [math.exp(logprob - most) for logprob in logprobs]
    return [weight / sum(weights) for weight in weights]


async def tournament(op: ops.Tournament, rows: Candidates, instance: Instance, strategy: ScoreStrategy) -> Candidates:
    """The winner, or the best rows one after another; with `per` those of all values, in the order first seen.

    All matches of a round are asked about at once. A match that does not fit into the model's context is a tie, and is
    counted. Raises RowError where the model cannot be asked.
    """
    count = instance.whole("keep", op.count, rows) if isinstance(op, ops.KeepTournament) and rows else 1
    groups = grouped(rows, op.per)
    instance.decision = Decision(groups)
    found: list[list[int]] = [[] for _ in groups]
    # By whom a row was beaten last: it plays again once that one is found.
    beaten: dict[int, int] = {}
    for _ in range(min(count, max(map(len, groups), default=0))):
        standing = [
            [at for at in group if at not in best and beaten.get(at, at) in (at, *best)]
            for best, group in zip(found, groups, strict=True)
        ]
        while any(len(group) > 1 for group in standing):
            matches = [pair for group in standing for pair in _pairs(group)]
            chances = await _chances(op, [(rows[a], rows[b]) for a, b in matches], instance, strategy)
            lost = {
                b if chance >= 0.5 else a: a if chance >= 0.5 else b
                for (a, b), chance in zip(matches, chances, strict=True)
            }
            beaten |= lost
            standing = [[at for at in group if at not in lost] for group in standing]
        for best, last in zip(found, standing, strict=True):
            best += last
    return tuple(rows[at] for best in found for at in best)


async def round_robin(op: ops.RoundRobin, rows: Candidates, instance: Instance, strategy: ScoreStrategy) -> Candidates:
    """All rows, by the sums of their chances, which are rounded; see `tournament`."""
    pairs = list(combinations(range(len(rows)), 2))
    won: list[list[float]] = [[] for _ in rows]
    chances = await _chances(op, [(rows[a], rows[b]) for a, b in pairs], instance, strategy)
    for (a, b), chance in zip(pairs, chances, strict=True):
        won[a].append(chance)
        won[b].append(1 - chance)
    sums = [round(math.fsum(own), SCORE_DIGITS) for own in won]
    return tuple(rows[at] for at in sorted(range(len(rows)), key=lambda at: -sums[at]))


def _pairs(group: list[int]) -> list[tuple[int, int]]:
    """The matches of a round; where the number is odd, the first goes on without one."""
    rest = group[len(group) % 2 :]
    return list(zip(rest[::2], rest[1::2], strict=True))


async def _chances(
    op: ops.Tournament, matches: Sequence[tuple[Row, Row]], instance: Instance, strategy: ScoreStrategy
) -> list[float]:
    """The chance of the first row of each match to win it."""
    orders = [(a, b) for a, b in matches] + ([(b, a) for a, b in matches] if op.both else [])
    questions = [(_question(op, a, b, instance), _ANSWERS) for a, b in orders]
    who = f"`{op.word} {'' if op.rows != 'count' else 'K '}by compare({op.model.name}, …)`"
    found = await answer_logprobs(op.model.name, questions, instance, strategy, who)
    firsts = [0.5 if logprobs is None else shares(logprobs)[0] for logprobs in found]
    turned = [1 - share for share in firsts[len(matches) :]] or firsts
    chances = [
        round((own + other) / 2, SCORE_DIGITS) for own, other in zip(firsts[: len(matches)], turned, strict=True)
    ]
    if instance.watched:
        emit_compared(matches, chances, instance)
    return chances


def _question(op: ops.Tournament, a: Row, b: Row, instance: Instance) -> str:
    pair = dict(zip(COMPARED, (a.columns, b.columns), strict=True))
    return format_value(evaluate(op.question, {**instance.arguments, **pair}))


async def answer_logprobs(
    name: str, questions: Sequence[Question | None], instance: Instance, strategy: ScoreStrategy, who: str
) -> list[tuple[float, ...] | None]:
    """The log-probability of each answer of each question, by the model that the program calls `name`.

    Each question is asked in a chat of its own, and equal ones once. None where there is no question, or where it does
    not fit into the model's context with its answers: those are counted. `who` asks, in messages. Raises RowError where
    the model cannot be asked.
    """
    model = instance.services.models[name]
    keys = [None if asked is None else ("answers", model.name, asked[0], *asked[1]) for asked in questions]
    async with instance.scoring(f"answers {model.name}"):
        prompts = await _prompts(keys, model, instance, who)
        branches = {key: tuple(model.encode_after((), text) for text in key[3:]) for key in prompts}
        end = tuple(sorted(model.eos))
        fitting = [key for key in prompts if len(prompts[key]) + max(map(len, branches[key])) <= model.most_read]
        with Submissions(instance) as submissions:
            for key in fitting:
                request = TreeRequest(prompts[key], branches[key], end, cached=strategy.share)
                submissions.submit(model.name, request)
            completions = await submissions.completions()
        instance.judged.update(dict.fromkeys(set(prompts).difference(fitting)))
        for key, completion in zip(fitting, completions, strict=True):
            logprobs = iter(completion.logprobs)
            instance.judged[key] = tuple(sum(islice(logprobs, len(ids) + bool(end))) for ids in branches[key])
    found = [None if key is None else _figures(instance.judged[key]) for key in keys]
    if unscored := sum(key is not None and figures is None for key, figures in zip(keys, found, strict=True)):
        instance.usage.counts["unscored"] += unscored
    return found


async def _prompts(
    keys: Iterable[tuple[str, ...] | None], model: TextModel, instance: Instance, who: str
) -> dict[tuple[str, ...], tuple[int, ...]]:
    """The prompts of the keys that were not asked about yet, of which the third part is the question; `who` asks them.

    Raises RowError.
    """
    new = [key for key in dict.fromkeys(keys) if key is not None and key not in instance.judged]
    try:
        return {key: await _asking(model, key[2]) for key in new}
    except ContextError as error:
        raise RowError(f"{who}: {error}") from error


async def _asking(model: TextModel, question: str) -> tuple[int, ...]:
    """The tokens of a chat that asks a question. Raises ContextError."""
    return await read_beside(len(question), partial(prompt_of, model, question))


def _figures(value: Value) -> tuple[float, ...] | None:
    return tuple(figure for figure in value if isinstance(figure, float)) if isinstance(value, tuple) else None

"""`as choice(…)`: one of a few texts, drawn by the model's probability of each and of ending after it.

The options are scored one by one, or all of a row as one tree, in which what they begin with alike is computed once.
Both score the same tokens after the same tokens, so they draw the same option.
"""

from __future__ import annotations

import json
from itertools import islice

import torch

from qpdsl.executor.engine.step.sampler import sample
from qpdsl.executor.requests.request import LogProbRequest, Sample, TreeRequest
from qpdsl.executor.runtime.generate.continuation import Continuation
from qpdsl.executor.runtime.generate.sampling import Sampling
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Submissions
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.ops import Constraint
from qpdsl.planner.values.value import format_value


async def choice_samples(sampling: Sampling, continuations: list[Continuation]) -> list[tuple[Sample, ...]]:
    """The samples of each row. An option is drawn as a token is, with its number in the place of a token's id.

    A row whose context has no room for every option ends there, with nothing drawn.
    """
    op, model, instance = sampling.op, sampling.model, sampling.instance
    assert op.constraint is not None
    options = [_options(op.constraint, row, instance) for row in continuations]
    encoded = [
        [model.encode_after(row.earlier, text) for text in texts]
        for row, texts in zip(continuations, options, strict=True)
    ]
    fits = [
        # A prompt that takes all of the context by itself is for the engine to refuse.
        len(row.prompt) + max(map(len, tokens)) <= model.most_read or len(row.prompt) >= model.max_positions
        for row, tokens in zip(continuations, encoded, strict=True)
    ]
    fitting = [(row, tokens) for row, tokens, fit in zip(continuations, encoded, fits, strict=True) if fit]
    score = _tree_scores if sampling.strategy.decode.constraint == "tree" else _scores
    scores_of = iter(await score(sampling, [row for row, _ in fitting], [tokens for _, tokens in fitting]))
    samples: list[tuple[Sample, ...]] = []
    for row, texts, tokens, fit in zip(continuations, options, encoded, fits, strict=True):
        count = len(row.keys)
        if not fit:
            samples.append((Sample((), "length", 0.0, 0),) * count)
            continue
        scores = next(scores_of)
        logits = torch.tensor([scores] * count, dtype=torch.float64)
        draw = sample(logits, [row.options.params] * count, list(row.keys), [row.drawn] * count)
        numbers, logprobs, near_ties = draw.tokens.tolist(), draw.logprobs.tolist(), draw.near_ties.tolist()
        samples.append(
            tuple(
                Sample(tokens[number], "match", logprob, near)
                for number, logprob, near in zip(numbers, logprobs, near_ties, strict=True)
            )
        )
        if instance.services.on_token is not None:
            # An option completes no letter that was begun before it.
            begun = model.detokenizer.tail(row.turn.text)
            for path, number in zip(row.paths, numbers, strict=True):
                instance.services.on_token(path, op.stage, begun + texts[number], False)
    return samples


def _options(constraint: Constraint, row: Continuation, instance: Instance) -> list[str]:
    """The texts that a row's output is one of, each once. Raises RowError where they are no list of texts."""
    if constraint.options is None:
        texts: list[str] = json.loads(constraint.source)
        return texts
    value, name = evaluate(constraint.options, instance.scope(row.row)), constraint.name
    if not isinstance(value, tuple) or not value or not all(isinstance(text, str) and text for text in value):
        raise RowError(f"`as {name}` takes a list of texts, none of them empty, not {format_value(value)}")
    # A list that a run makes, such as the samples of a question, may well hold a text twice.
    return [str(text) for text in dict.fromkeys(value)]


async def _scores(
    sampling: Sampling, continuations: list[Continuation], encoded: list[list[tuple[int, ...]]]
) -> list[list[float]]:
    """The log-probability of each option of each row, and of the end after it.

    Where prefixes are shared the first option goes first, so that the others find the context in the prefix cache.
    """
    model, instance, share = sampling.model, sampling.instance, sampling.strategy.share
    end = tuple(sorted(model.eos))
    scores: list[list[float]] = [[] for _ in continuations]
    for part in (slice(0, 1), slice(1, None)) if share else (slice(None),):
        with Submissions(instance) as submissions:
            owners: list[list[float]] = []
            for row, options, own in zip(continuations, encoded, scores, strict=True):
                for tokens in options[part]:
                    request = LogProbRequest(row.prompt, tokens, end, cached=share)
                    submissions.submit(model.name, request)
                    owners.append(own)
            for own, completion in zip(owners, await submissions.completions(), strict=True):
                own.append(sum(completion.logprobs))
    return scores


async def _tree_scores(
    sampling: Sampling, continuations: list[Continuation], encoded: list[list[tuple[int, ...]]]
) -> list[list[float]]:
    """The same, by one request for each row."""
    model, instance, share = sampling.model, sampling.instance, sampling.strategy.share
    end = tuple(sorted(model.eos))
    with Submissions(instance) as submissions:
        for row, options in zip(continuations, encoded, strict=True):
            request = TreeRequest(row.prompt, tuple(options), end, cached=share)
            submissions.submit(model.name, request)
        completions = await submissions.completions()
    scores: list[list[float]] = []
    for options, completion in zip(encoded, completions, strict=True):
        logprobs = iter(completion.logprobs)
        scores.append([sum(islice(logprobs, len(tokens) + bool(end))) for tokens in options])
    return scores

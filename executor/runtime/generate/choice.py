"""`as choice(…)`: one of a few texts, drawn by the model's probability of each and of ending after it."""

from __future__ import annotations

import json

import torch

from qpdsl.executor.engine.step.sampler import sample
from qpdsl.executor.requests.request import LogProbRequest, Sample
from qpdsl.executor.runtime.generate.continuation import Going
from qpdsl.executor.runtime.generate.sampling import Drawing
from qpdsl.executor.runtime.instance.instance import Submissions
from qpdsl.planner.plan import ops


async def choose(constraint: ops.Constraint, drawing: Drawing, going: list[Going]) -> list[tuple[Sample, ...]]:
    """The samples of each row. An option is drawn as a token is, its number in the place of a token's id."""
    model, options, instance = drawing.model, drawing.options, drawing.instance
    texts: list[str] = json.loads(constraint.source)
    spelled = [[model.encode_after(each.earlier, text) for text in texts] for each in going]
    scores = await _scores(going, spelled, drawing)
    drawn: list[tuple[Sample, ...]] = []
    for each, tokens, logprobs in zip(going, spelled, scores, strict=True):
        count = len(each.keys)
        logits = torch.tensor([logprobs] * count, dtype=torch.float64)
        draw = sample(logits, [options.sampling] * count, list(each.keys), [0] * count)
        chosen, values, near = draw.tokens.tolist(), draw.logprobs.tolist(), draw.near_ties.tolist()
        drawn.append(tuple(Sample(tokens[c], "match", v, n) for c, v, n in zip(chosen, values, near, strict=True)))
        if instance.services.on_token is not None:
            for path, index in zip(each.paths, chosen, strict=True):
                instance.services.on_token(path, drawing.op.stage, texts[index])
    return drawn


async def _scores(going: list[Going], spelled: list[list[tuple[int, ...]]], drawing: Drawing) -> list[list[float]]:
    """The log-probability of each option of each row, and of the end after it.

    Where prefixes are shared the first option goes ahead, so that the others find the context in the prefix cache.
    """
    model, instance = drawing.model, drawing.instance
    end = tuple(sorted(model.eos))
    scores: list[list[float]] = [[] for _ in going]
    for some in (slice(0, 1), slice(1, None)) if drawing.strategy.share else (slice(None),):
        with Submissions(instance) as submissions:
            owners: list[list[float]] = []
            for each, options, found in zip(going, spelled, scores, strict=True):
                for tokens in options[some]:
                    request = LogProbRequest(each.prompt, tokens, end, cached=drawing.strategy.share)
                    submissions.submit(model.name, request)
                    instance.usage.prompt_tokens += len(request.tokens)
                    owners.append(found)
            for found, completion in zip(owners, await submissions.completions(), strict=True):
                found.append(sum(completion.logprobs))
    return scores

"""The probabilities that a model gives to answers: those of the tokens of each and of the end after it, as in `choice`.

All answers of a question are read in one pass over the tree of their tokens, in which what they begin with alike is
computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from qpdsl.executor.requests.request import TreeRequest
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Submissions
from qpdsl.executor.text.context import Context, ContextError, encode
from qpdsl.planner.plan.physical import ScoreStrategy
from qpdsl.planner.values.value import Value

# A question, which is a whole user turn, and the texts that could answer it.
Question = tuple[str, tuple[str, ...]]


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
        new = [key for key in dict.fromkeys(keys) if key is not None and key not in instance.judged]
        try:
            prompts = {key: encode(model.tokenizer, Context(turns=(("user", key[2]),))) for key in new}
        except ContextError as error:
            raise RowError(f"{who}: {error}") from error
        branches = {key: tuple(model.encode_after((), text) for text in key[3:]) for key in new}
        end = tuple(sorted(model.eos))
        fitting = [key for key in new if len(prompts[key]) + max(map(len, branches[key])) <= model.most_read]
        with Submissions(instance) as submissions:
            for key in fitting:
                request = TreeRequest(prompts[key], branches[key], end, cached=strategy.share)
                submissions.submit(model.name, request)
                instance.usage.prompt_tokens += len(request.tokens)
            completions = await submissions.completions()
        instance.judged.update(dict.fromkeys(set(new).difference(fitting)))
        for key, completion in zip(fitting, completions, strict=True):
            logprobs = iter(completion.logprobs)
            instance.judged[key] = tuple(sum(islice(logprobs, len(ids) + bool(end))) for ids in branches[key])
    found = [None if key is None else _figures(instance.judged[key]) for key in keys]
    if unscored := sum(key is not None and figures is None for key, figures in zip(keys, found, strict=True)):
        instance.usage.counts["unscored"] += unscored
    return found


def _figures(value: Value) -> tuple[float, ...] | None:
    return tuple(figure for figure in value if isinstance(figure, float)) if isinstance(value, tuple) else None

"""Log-probabilities over OpenAI's completions: of given tokens, of the likeliest ones, and of ids that are named.

vLLM has `prompt_logprobs`, which computes the whole prompt anew, and `logprob_token_ids`, which looks at the token that
would come next and uses the prefix cache. Others have `echo`, which tells of the tokens that stand there alone. One
token is drawn in any case: what a server makes of `max_tokens` 0 differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qpdsl.executor.remote.scoring.reading import BadAnswer, Reading, Values, field, number
from qpdsl.executor.remote.scoring.scoring_positions import Tokens

_PATH = "completions"
# How vLLM writes an id in the place of a token.
_SIGN = "token_id:"
# vLLM cuts log-probabilities off here, as JSON has no infinity.
_LEAST = -9999.0

# After so many tokens, these ids.
Want = tuple[int, Tokens]


def named_reading(model: str, tokens: Tokens, ids: Tokens) -> Reading:
    """vLLM: the log-probabilities of `ids` for the token that follows `tokens`."""
    body = {
        **_asked(model, tokens),
        "logprobs": len(ids),
        "logprob_token_ids": list(ids),
        "return_tokens_as_token_ids": True,
    }

    def read(answer: Any) -> Values:
        told = field(answer, "choices", 0, "logprobs", "top_logprobs", 0)
        return (tuple(_told(told, f"{_SIGN}{id}") for id in ids),)

    return Reading(_PATH, body, read)


def prompt_reading(model: str, tokens: Tokens, wants: Sequence[Want], likeliest: int) -> Reading:
    """vLLM: what is wanted inside of `tokens`: after fewer than all of them.

    Of ids that do not stand there only those are told that are among the `likeliest`.
    """
    only_given = all(ids == (tokens[length],) for length, ids in wants)
    body = {**_asked(model, tokens), "prompt_logprobs": 0 if only_given else likeliest}

    def read(answer: Any) -> Values:
        told = field(answer, "choices", 0, "prompt_logprobs")
        if not isinstance(told, list) or len(told) != len(tokens):
            raise BadAnswer(f"did not tell the log-probabilities of the {len(tokens)} tokens that it was given")
        rows = []
        for length, ids in wants:
            if not isinstance(told[length], dict) or str(tokens[length]) not in told[length]:
                raise BadAnswer("told the log-probabilities of other tokens than it was given")
            rows.append(tuple(_told(told[length], str(id), "logprob") for id in ids))
        return tuple(rows)

    return Reading(_PATH, body, read)


def echo_reading(model: str, tokens: Tokens, wants: Sequence[Want]) -> Reading:
    """Any server with `echo`: of the wanted ids, those that stand in `tokens`."""
    body = {**_asked(model, tokens), "echo": True, "logprobs": 1}

    def read(answer: Any) -> Values:
        told = field(answer, "choices", 0, "logprobs", "token_logprobs")
        # With the token that is drawn, which some leave out.
        if not isinstance(told, list) or not 0 <= len(told) - len(tokens) <= 1:
            raise BadAnswer(f"did not tell the log-probabilities of the {len(tokens)} tokens that it was given")
        return tuple(
            tuple(_cut(number(told[length])) if id == tokens[length] else None for id in ids) for length, ids in wants
        )

    return Reading(_PATH, body, read)


def _asked(model: str, tokens: Tokens) -> dict[str, Any]:
    return {"model": model, "prompt": list(tokens), "max_tokens": 1, "temperature": 0, "seed": 0}


def _told(told: Any, key: str, name: str | None = None) -> float | None:
    if not isinstance(told, Mapping):
        raise BadAnswer("did not tell log-probabilities")
    if key not in told:
        return None
    return _cut(number(told[key] if name is None else field(told[key], name)))


def _cut(value: float) -> float:
    if value > 1e-3:
        raise BadAnswer(f"answered {value} in the place of a log-probability")
    return max(min(value, 0.0), _LEAST)

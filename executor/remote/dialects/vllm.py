"""vLLM's fields beside those of OpenAI (vllm/entrypoints/openai, version 0.32).

Numbers about given tokens: `prompt_logprobs` computes the whole prompt anew, and `logprob_token_ids` looks at the token
that would come next and uses the prefix cache. A reward model is served with `--runner pooling`: `/pooling` gives a row
of numbers a token (with the pooling "STEP", one a step's mark), `/classify` one row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from qpdsl.executor.remote.dialects.dialect import BadAnswer, Question, Tokens, Values, Want, field
from qpdsl.executor.remote.dialects.openai import (
    OpenAIDialect,
    all_filters,
    as_logprob,
    as_outputs,
    given_ids,
    reading,
)
from qpdsl.executor.remote.server.server_capabilities import ScoreSource
from qpdsl.executor.requests.request import ConstraintKind, SampleConstraint, SamplingParams

_FIELDS: Mapping[ConstraintKind, str] = {
    "json_schema": "json",
    "regex": "regex",
    "grammar": "grammar",
    "choice": "choice",
}

# How vLLM writes an id in the place of a token.
_SIGN = "token_id:"


class VLLMDialect(OpenAIDialect):
    constraints: frozenset[ConstraintKind] = frozenset(_FIELDS)
    processors: frozenset[str] = frozenset(
        {"repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "min_tokens"}
    )
    reads_likeliest = True
    score_sources: Sequence[ScoreSource] = ("pooling", "classify")
    # Usage in every event: of an answer that is cut off it is known too.
    _stream_options: Mapping[str, bool] = {"continuous_usage_stats": True}
    _prefill: Mapping[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    # 0 gives the drawn token's alone.
    _logprobs: Mapping[str, Any] = {"logprobs": 0}
    _ids: Mapping[str, Any] = {"return_token_ids": True}
    _stops: Mapping[str, Any] = {"include_stop_str_in_output": True}
    _stopped_by = "stop_reason"

    def path_question(self, model: str, tokens: Tokens, wants: Sequence[Want], likeliest: int) -> Question:
        only_given = all(ids == (tokens[length],) for length, ids in wants)
        body = {**reading(model, tokens), "prompt_logprobs": 0 if only_given else likeliest}

        def read(answer: Any) -> Values:
            found = field(answer, "choices", 0, "prompt_logprobs")
            if not isinstance(found, list) or len(found) != len(tokens):
                raise BadAnswer(f"returned no log-probabilities of the {len(tokens)} tokens that it was given")
            rows = []
            for length, ids in wants:
                if not isinstance(found[length], dict) or str(tokens[length]) not in found[length]:
                    raise BadAnswer("returned the log-probabilities of other tokens")
                rows.append(tuple(_logprob(found[length], str(id), "logprob") for id in ids))
            return tuple(rows)

        return Question("completions", body, read)

    def next_question(self, model: str, tokens: Tokens, ids: Tokens) -> Question | None:
        named = {"logprobs": len(ids), "logprob_token_ids": list(ids), "return_tokens_as_token_ids": True}

        def read(answer: Any) -> Values:
            found = field(answer, "choices", 0, "logprobs", "top_logprobs", 0)
            return (tuple(_logprob(found, f"{_SIGN}{id}") for id in ids),)

        return Question("completions", {**reading(model, tokens), **named}, read)

    def score_question(
        self, source: ScoreSource, model: str, tokens: Tokens, places: Sequence[int], outputs: Tokens, *, shares: bool
    ) -> Question:
        body = {"model": model, "input": list(tokens), "use_activation": False}

        def read_last(answer: Any) -> Values:
            return (as_outputs(field(answer, "data", 0, "probs"), outputs, shares=shares),)

        def read_rows(answer: Any) -> Values:
            rows = field(answer, "data", 0, "data")
            if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
                raise BadAnswer("did not return a row of numbers for each token")
            return tuple(as_outputs(row, outputs, shares=shares) for row in _chosen(rows, tokens, places))

        if source == "classify":
            return Question("/classify", body, read_last)
        return Question("/pooling", {**body, "task": "token_classify"}, read_rows)

    def _sampling(self, sampling: SamplingParams) -> dict[str, Any]:
        return {**all_filters(sampling, 0), "repetition_penalty": sampling.processors.repetition}

    def _held(self, constraint: SampleConstraint, *, chat: bool) -> dict[str, Any]:
        source: Any = constraint.source
        if constraint.kind in ("json_schema", "choice"):
            source = json.loads(source)
        return {"structured_outputs": {_FIELDS[constraint.kind]: source}}

    def _token_ids(self, choice: Mapping[str, Any]) -> tuple[int, ...] | None:
        return given_ids(choice)


def _logprob(found: Any, key: str, name: str | None = None) -> float | None:
    if not isinstance(found, Mapping):
        raise BadAnswer("returned no log-probabilities")
    if key not in found:
        return None
    return as_logprob(found[key] if name is None else field(found[key], name))


def _chosen(rows: list[Any], tokens: Tokens, places: Sequence[int]) -> list[Any]:
    """The rows of these places, out of one for each token or one for each mark of a step."""
    if len(rows) == len(tokens):
        return [rows[place] for place in places]
    marks = [place for place, token in enumerate(tokens) if token == tokens[places[-1]]]
    if len(rows) != len(marks) or not set(places).issubset(marks):
        raise BadAnswer(f"returned {len(rows)} rows for {len(tokens)} tokens, of which {len(marks)} end a step")
    return [rows[marks.index(place)] for place in places]

"""SGLang's fields beside those of OpenAI (sglang/srt/entrypoints/openai/protocol.py).

Numbers about given tokens come from its own `/generate`: of named ids at every token from `logprob_start_len` on, the
first of them without a number. Those before it are found in its cache (`GenerateReqInput` and
`_process_input_token_ids_logprobs` in its sources). `/classify`, with `--is-embedding`, gives the scores at the last
token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from qpdsl.executor.remote.dialects.dialect import BadAnswer, Question, Tokens, Values, Want, field, number
from qpdsl.executor.remote.dialects.openai import OpenAIDialect, all_filters, as_outputs, given_ids
from qpdsl.executor.remote.server.server_capabilities import ScoreSource
from qpdsl.executor.requests.request import ConstraintKind, SampleConstraint, SamplingParams

# What means something in a regex.
_SIGNS = frozenset(r"\.^$|?*+()[]{}/-")


class SGLangDialect(OpenAIDialect):
    """Seeds hold where the server runs with `--enable-deterministic-inference`."""

    constraints: frozenset[ConstraintKind] = frozenset({"json_schema", "regex", "choice"})
    # Its repetition penalty leaves the prompt out.
    processors: frozenset[str] = frozenset({"presence_penalty", "frequency_penalty", "logit_bias", "min_tokens"})
    reads_next = True
    score_sources: Sequence[ScoreSource] = ("classify",)
    # Usage in every event: of an answer that is cut off it is known too.
    _stream_options: Mapping[str, bool] = {"continuous_usage_stats": True}
    _prefill: Mapping[str, Any] = {"continue_final_message": True}
    _ids: Mapping[str, Any] = {"return_token_ids": True}
    _stops: Mapping[str, Any] = {"no_stop_trim": True}
    _stopped_by = "matched_stop"

    def path_question(self, model: str, tokens: Tokens, wants: Sequence[Want], likeliest: int = 0) -> Question:
        lengths = [length for length, _ in wants]
        inside = min(lengths) < len(tokens)
        start = min(lengths) - 1
        body = {
            "input_ids": list(tokens),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0, "top_p": 1.0, "top_k": -1},
            "return_logprob": True,
            "logprob_start_len": start if inside else -1,
            "token_ids_logprob": list(dict.fromkeys(id for _, ids in wants for id in ids)),
        }

        def read(answer: Any) -> Values:
            meta = field(answer, "meta_info")
            before = field(meta, "input_token_ids_logprobs") if inside else []
            if inside and (not isinstance(before, list) or len(before) != len(tokens) - start):
                raise BadAnswer(f"returned no log-probabilities of the {len(tokens) - start} tokens from {start} on")
            rows = []
            for length, ids in wants:
                after_all = length == len(tokens)
                known = _by_id(field(meta, "output_token_ids_logprobs", 0) if after_all else before[length - start])
                rows.append(tuple(known.get(id) for id in ids))
            return tuple(rows)

        return Question("/generate", body, read)

    def next_question(self, model: str, tokens: Tokens, ids: Tokens) -> Question | None:
        return self.path_question(model, tokens, [(len(tokens), ids)])

    def score_question(
        self, source: ScoreSource, model: str, tokens: Tokens, places: Sequence[int], outputs: Tokens, *, shares: bool
    ) -> Question:
        def read(answer: Any) -> Values:
            # One that was asked about alone is answered alone by some versions, and in a list by others.
            single = answer[0] if isinstance(answer, list) and answer else answer
            return (as_outputs(field(single, "embedding"), outputs),)

        return Question("/classify", {"input_ids": list(tokens)}, read)

    def _sampling(self, sampling: SamplingParams) -> dict[str, Any]:
        return {**all_filters(sampling, -1), "repetition_penalty": 1.0}

    def _unbounded(self) -> dict[str, Any]:
        raise ValueError("SGLang's completions need `max_tokens`: its default is 16")

    def _held(self, constraint: SampleConstraint, *, chat: bool) -> dict[str, Any]:
        if constraint.kind == "choice":
            return {"regex": f"({'|'.join(map(_literal, json.loads(constraint.source)))})"}
        if constraint.kind == "regex":
            return {"regex": constraint.source}
        if constraint.kind == "json_schema" and not chat:
            return {"json_schema": constraint.source}
        return super()._held(constraint, chat=chat)

    def _token_ids(self, choice: Mapping[str, Any]) -> tuple[int, ...] | None:
        return given_ids(choice)


def _literal(text: str) -> str:
    return "".join(f"\\{character}" if character in _SIGNS else character for character in text)


def _by_id(found: Any) -> dict[int, float]:
    """What stands as a list of a log-probability, an id and maybe its text."""
    if not isinstance(found, list):
        raise BadAnswer("returned no log-probabilities")
    return {int(number(field(entry, 1))): min(number(field(entry, 0)), 0.0) for entry in found}

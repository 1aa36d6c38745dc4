"""What llama-server and llama-cpp-python's server have beside OpenAI's fields (llama.cpp, tools/server/README.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qpdsl.executor.remote.dialects.openai import OpenAIDialect, all_filters, count_in
from qpdsl.executor.requests.request import ConstraintKind, SampleConstraint, SamplingParams


class LlamaCppDialect(OpenAIDialect):
    constraints: frozenset[ConstraintKind] = frozenset({"json_schema", "choice"})
    # Its other penalties count the prompt too.
    processors: frozenset[str] = frozenset({"repetition_penalty", "logit_bias"})

    def _sampling(self, sampling: SamplingParams) -> dict[str, Any]:
        # llama-cpp-python's server repeats less often than its model would, unless told.
        repetition = sampling.processors.repetition
        # By default it looks at the last tokens alone.
        reach = {} if repetition == 1 else {"repeat_last_n": -1}
        return {**all_filters(sampling, 0), "repeat_penalty": repetition, **reach}

    def _unbounded(self) -> dict[str, Any]:
        return {"max_tokens": -1}

    def _held(self, constraint: SampleConstraint, *, chat: bool) -> dict[str, Any]:
        if constraint.kind == "choice":
            return {"grammar": f"root ::= {' | '.join(map(_literal, json.loads(constraint.source)))}"}
        if constraint.kind != "json_schema":
            return super()._held(constraint, chat=chat)
        schema = json.loads(constraint.source)
        # Both servers know this form in chats; in completions one knows the other.
        return {"response_format": {"type": "json_object", "schema": schema}} if chat else {"json_schema": schema}

    def _token_ids(self, choice: Mapping[str, Any]) -> tuple[int, ...] | None:
        told = (choice.get("logprobs") or {}).get("content")
        if told is None:
            return None
        return tuple(int(token["id"]) for token in told) if all("id" in token for token in told) else None

    def _cached(self, answer: Mapping[str, Any]) -> int | None:
        cached = super()._cached(answer)
        return count_in(answer.get("timings"), "cache_n") if cached is None else cached


def _literal(text: str) -> str:
    """A text as a terminal of GBNF."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'

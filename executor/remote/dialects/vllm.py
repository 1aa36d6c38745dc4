"""vLLM's fields beside those of OpenAI (vllm/entrypoints/openai, version 0.32)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qpdsl.executor.remote.dialects.openai import OpenAIDialect, all_filters, given_ids
from qpdsl.executor.requests.request import Constraint, ConstraintKind, SamplingParams

_FIELDS: Mapping[ConstraintKind, str] = {
    "json_schema": "json",
    "regex": "regex",
    "grammar": "grammar",
    "choice": "choice",
}


class VLLMDialect(OpenAIDialect):
    constraints: frozenset[ConstraintKind] = frozenset(_FIELDS)
    # Usage in every event: of an answer that is cut off it is known too.
    _stream_options: Mapping[str, bool] = {"continuous_usage_stats": True}

    def _sampling(self, sampling: SamplingParams) -> dict[str, Any]:
        return {**all_filters(sampling, 0), "repetition_penalty": 1.0}

    def _prefill(self) -> dict[str, Any]:
        return {"add_generation_prompt": False, "continue_final_message": True}

    def _logprobs(self) -> dict[str, Any]:
        # 0 gives the drawn token's alone.
        return {"logprobs": 0}

    def _ids(self) -> dict[str, Any]:
        return {"return_token_ids": True}

    def _stops(self, stops: tuple[str, ...]) -> dict[str, Any]:
        return {"stop": list(stops), "include_stop_str_in_output": True}

    def _held(self, constraint: Constraint, *, chat: bool) -> dict[str, Any]:
        source: Any = constraint.source
        if constraint.kind in ("json_schema", "choice"):
            source = json.loads(source)
        return {"structured_outputs": {_FIELDS[constraint.kind]: source}}

    def _token_ids(self, choice: Mapping[str, Any]) -> tuple[int, ...] | None:
        return given_ids(choice)

    def _stopped_by(self, choice: Mapping[str, Any]) -> str | None:
        reason = choice.get("stop_reason")
        return reason if isinstance(reason, str) else None

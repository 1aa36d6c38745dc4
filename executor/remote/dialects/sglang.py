"""SGLang's fields beside those of OpenAI (sglang/srt/entrypoints/openai/protocol.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qpdsl.executor.remote.dialects.openai import OpenAIDialect, all_filters, given_ids
from qpdsl.executor.requests.request import Constraint, ConstraintKind, SamplingParams

# What means something in a regex.
_SIGNS = frozenset(r"\.^$|?*+()[]{}/-")


class SGLangDialect(OpenAIDialect):
    """Seeds hold where the server runs with `--enable-deterministic-inference`."""

    constraints: frozenset[ConstraintKind] = frozenset({"json_schema", "regex", "choice"})
    # Usage in every event: of an answer that is cut off it is known too.
    _stream_options: Mapping[str, bool] = {"continuous_usage_stats": True}

    def _sampling(self, sampling: SamplingParams) -> dict[str, Any]:
        return {**all_filters(sampling, -1), "repetition_penalty": 1.0}

    def _prefill(self) -> dict[str, Any]:
        return {"continue_final_message": True}

    def _ids(self) -> dict[str, Any]:
        return {"return_token_ids": True}

    def _unbounded(self) -> dict[str, Any]:
        raise ValueError("SGLang's completions need `max_tokens`: its default is 16")

    def _stops(self, stops: tuple[str, ...]) -> dict[str, Any]:
        return {"stop": list(stops), "no_stop_trim": True}

    def _held(self, constraint: Constraint, *, chat: bool) -> dict[str, Any]:
        if constraint.kind == "choice":
            return {"regex": f"({'|'.join(map(_literal, json.loads(constraint.source)))})"}
        if constraint.kind == "regex":
            return {"regex": constraint.source}
        if constraint.kind == "json_schema" and not chat:
            return {"json_schema": constraint.source}
        return super()._held(constraint, chat=chat)

    def _token_ids(self, choice: Mapping[str, Any]) -> tuple[int, ...] | None:
        return given_ids(choice)

    def _stopped_by(self, choice: Mapping[str, Any]) -> str | None:
        matched = choice.get("matched_stop")
        return matched if isinstance(matched, str) else None


def _literal(text: str) -> str:
    return "".join(f"\\{character}" if character in _SIGNS else character for character in text)

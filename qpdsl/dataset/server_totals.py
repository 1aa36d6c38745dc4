"""What a run took of servers, for people and for programs: requests, what was replayed, tokens as billed, cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qpdsl.executor.requests.request import Calls
from qpdsl.planner.cost.server_calls import SAVED_COUNTS, calls_json
from qpdsl.planner.explain.quantities import calls_words


def total_calls(calls: Mapping[str, Calls]) -> Calls | None:
    """The calls of all models together; None where no model is on a server."""
    return sum(calls.values(), Calls()) if calls else None


def call_facts(calls: Calls | None, counts: Mapping[str, int] | None = None) -> list[tuple[str, str]]:
    """One line for people, as a name and its value; none where no server was to be asked.

    `counts`, those of a `Usage`, tell of calls that were saved.
    """
    if calls is None:
        return []
    words = [*calls_words(_counts(calls) | _saved(counts or {}))] or ["0 requests"]
    words.append(f"{calls.prompt_tokens or 0:,} tokens in, {calls.sampled_tokens:,} out")
    return [("servers", ", ".join(words))]


def calls_record(calls: Calls | None, counts: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The same under one stable key, empty where no server was to be asked."""
    if calls is None:
        return {}
    tokens = {"tokens_in": calls.prompt_tokens, "tokens_out": calls.sampled_tokens}
    told = calls_json(_counts(calls) | _saved(counts or {})) or {}
    names = ("requests", "retries", "replayed", "server_cached", "saved_calls", "wasted_tokens", "cost")
    return {"servers": {**{name: told.get(name, 0) for name in names}, **tokens}}


def _saved(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: counts.get(name, 0) for name in SAVED_COUNTS}


def _counts(calls: Calls) -> dict[str, int]:
    return {
        "requests": calls.requests,
        "retries": calls.retries,
        "replayed": calls.replayed,
        "server_cached": calls.cached_tokens,
        "cost_millionths": round(calls.cost * 1e6),
    }

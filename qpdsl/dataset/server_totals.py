"""What a run took of servers, for people and for programs: requests, what was replayed, tokens as billed, cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qpdsl.executor.requests.request import Calls
from qpdsl.planner.cost.server_calls import calls_json, calls_words


def total_calls(calls: Mapping[str, Calls]) -> Calls | None:
    """The calls of all models together; None where no model is on a server."""
    return sum(calls.values(), Calls()) if calls else None


def call_facts(calls: Calls | None) -> list[tuple[str, str]]:
    """One line for people, as a name and its value; none where no server was to be asked."""
    if calls is None:
        return []
    words = [*calls_words(_counts(calls))] or ["0 requests"]
    if calls.requests:
        words.append(f"billed {calls.prompt_tokens or 0:,} tokens in, {calls.sampled_tokens:,} out")
    return [("servers", ", ".join(words))]


def calls_record(calls: Calls | None) -> dict[str, Any]:
    """The same under one stable key, empty where no server was to be asked."""
    if calls is None:
        return {}
    tokens = {"tokens_in": calls.prompt_tokens, "tokens_out": calls.sampled_tokens}
    counts = calls_json(_counts(calls)) or {"requests": 0, "retries": 0, "replayed": 0, "cost": 0.0}
    kept = ("requests", "retries", "replayed", "server_cached", "cost")
    return {"servers": {**{name: counts.get(name, 0) for name in kept}, **tokens}}


def _counts(calls: Calls) -> dict[str, int]:
    return {
        "requests": calls.requests,
        "retries": calls.retries,
        "replayed": calls.replayed,
        "server_cached": calls.cached_tokens,
        "cost_millionths": round(calls.cost * 1e6),
    }

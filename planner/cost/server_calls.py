"""What calls to servers elsewhere came to, by the counts of the runtime's `Usage`."""

from __future__ import annotations

from collections.abc import Mapping

# The counts that tell of calls, as `Usage` has them; the second ones of those that were asked to go on past their stop.
SAVED_COUNTS = ("saved_calls", "beyond_tokens", "beyond_used")
CALL_COUNTS = ("requests", "retries", "replayed", "server_cached", "cost_millionths", *SAVED_COUNTS)


def has_calls(counts: Mapping[str, int]) -> bool:
    """Whether a server was asked, or would have been."""
    return any(counts.get(name) for name in ("requests", "replayed", "saved_calls"))


def calls_json(counts: Mapping[str, int]) -> dict[str, int | float] | None:
    """As data with stable keys; None where no server was asked. `cost` is in the currency of the price table."""
    if not has_calls(counts):
        return None
    names = ("requests", "retries", "replayed", "server_cached", "saved_calls")
    return {
        **{name: counts.get(name, 0) for name in names},
        "wasted_tokens": wasted_tokens(counts),
        "cost": counts.get("cost_millionths", 0) / 1e6,
    }


def wasted_tokens(counts: Mapping[str, int]) -> int:
    """Tokens that calls wrote past their stop and no later call took."""
    return counts.get("beyond_tokens", 0) - counts.get("beyond_used", 0)

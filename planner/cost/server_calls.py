"""What calls to servers elsewhere came to, by the counts of the runtime's `Usage`, in words and as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

# The counts that tell of calls, as `Usage` has them; the second ones of those that were asked to go on past their stop.
SAVED_COUNTS = ("saved_calls", "beyond_tokens", "beyond_used")
CALL_COUNTS = ("requests", "retries", "replayed", "server_cached", "cost_millionths", *SAVED_COUNTS)


def has_calls(counts: Mapping[str, int]) -> bool:
    """Whether a server was asked, or would have been."""
    return any(counts.get(name) for name in ("requests", "replayed", "saved_calls"))


def calls_words(counts: Mapping[str, int], *, of_operator: bool = False) -> Iterator[str]:
    """For people: what was sent, what was not sent again, and what of it was for nothing. Nothing without a call.

    What one operator wrote past its stop others take, so only of a whole run it is known what was wasted.
    """
    if not has_calls(counts):
        return
    yield _plural(counts.get("requests", 0), "request")
    if retries := counts.get("retries", 0):
        yield f"{retries:,} of them again"
    if replayed := counts.get("replayed", 0):
        yield f"{replayed:,} replayed"
    if cached := counts.get("server_cached", 0):
        yield f"{_plural(cached, 'token')} cached there"
    if saved := counts.get("saved_calls", 0):
        yield f"{_plural(saved, 'call')} saved"
    if of_operator and (beyond := counts.get("beyond_tokens", 0)):
        yield f"{_plural(beyond, 'token')} past its stop"
    if not of_operator and (wasted := wasted_tokens(counts)):
        yield f"{_plural(wasted, 'token')} wasted"
    if cost := counts.get("cost_millionths", 0):
        yield f"cost {cost / 1e6:,.6f}".rstrip("0")


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


def _plural(value: int, noun: str) -> str:
    return f"{value:,} {noun}{'' if value == 1 else 's'}"

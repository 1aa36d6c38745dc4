"""Numbers as people read them in plans: counts, bytes, seconds, shares; calls to servers, and what routers did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qpdsl.planner.cost.run_figures import ExitRouterFigures, RouterFigures, has_calls, wasted_tokens
from qpdsl.planner.cost.server_times import ServerWaits

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def count(value: float) -> str:
    """Exact below ten thousand."""
    if value < 10_000:
        return f"{value:.0f}"
    for unit in ("k", "M", "G"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f}{unit}"
    return "1T+"


def plural(value: float, noun: str) -> str:
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def exact_plural(value: int, noun: str) -> str:
    """As `plural`, with all digits: what is paid for is not rounded."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def byte_count(value: float) -> str:
    steps = 0
    while value >= 1024 and steps < len(_BYTES) - 1:
        value, steps = value / 1024, steps + 1
    unit = _BYTES[steps]
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"


def seconds(value: float) -> str:
    """Two digits that count, and at the most hundredths of a millisecond."""
    if value < 0.1:
        return f"{value * 1000:.1f} ms"
    if value < 10:
        return f"{value:.2f} s"
    return f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"


def per_cent(share: float) -> str:
    return f"{share:.0%}"


def calls_words(counts: Mapping[str, int], *, of_operator: bool = False) -> Iterator[str]:
    """For people: what was sent, what was not sent again, and what of it was for nothing. Nothing without a call.

    What one operator wrote past its stop others take, so only of a whole run it is known what was wasted.
    """
    if not has_calls(counts):
        return
    yield exact_plural(counts.get("requests", 0), "request")
    if retries := counts.get("retries", 0):
        yield f"{retries:,} of them again"
    if replayed := counts.get("replayed", 0):
        yield f"{replayed:,} replayed"
    if cached := counts.get("server_cached", 0):
        yield f"{exact_plural(cached, 'token')} cached there"
    if saved := counts.get("saved_calls", 0):
        yield f"{exact_plural(saved, 'call')} saved"
    if of_operator and (beyond := counts.get("beyond_tokens", 0)):
        yield f"{exact_plural(beyond, 'token')} past its stop"
    if not of_operator and (wasted := wasted_tokens(counts)):
        yield f"{exact_plural(wasted, 'token')} wasted"
    if cost := counts.get("cost_millionths", 0):
        yield f"cost {cost / 1e6:,.6f}".rstrip("0")


def waits_words(waits: ServerWaits) -> str:
    """What operators waited for a server."""
    rate = "" if waits.rate is None else f", {waits.rate:,.1f} tokens/s"
    return f"operators waited {seconds(waits.each)} each{rate}"


def router_words(figures: RouterFigures) -> str:
    """The shares of the arms, and what steps took in the head, the router's choices among it."""
    total = sum(figures.steps.values())
    shares = ", ".join(f"{arm} {per_cent(steps / total)}" for arm, steps in figures.steps.items() if steps)
    spent, head = (time / total * 1e6 for time in (figures.spent, figures.seconds))
    words = f"router {figures.policy}: {shares} of {count(total)} steps, {spent + head:,.0f} µs a step in the head"
    return words + f", {spent:.1f} of them to choose"


def exit_router_words(figures: ExitRouterFigures) -> str:
    """How many draws tried their exit, and by what that was decided."""
    total = sum(figures.draws.values())
    shares = ", ".join(f"{arm} {per_cent(draws / total)}" for arm, draws in figures.draws.items() if draws)
    words = f"router {figures.policy} of {figures.where}: {shares} of {count(total)} draws"
    spent = f", {figures.spent / total * 1e6:.0f} µs a draw to choose" if figures.spent else ""
    return f"{words}{spent}, state {figures.state}"

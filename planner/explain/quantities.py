"""Numbers as people read them in plans: counts, bytes, seconds, shares."""

from __future__ import annotations

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

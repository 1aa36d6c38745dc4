"""Numbers in few cells, and bars and graphs made of characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LEFT = " ▏▎▍▌▋▊▉█"
NONE = "–"


def count(value: float) -> str:
    """A whole number in at most six cells."""
    if not math.isfinite(value):
        return NONE
    value = round(value)
    if abs(value) < 10_000:
        return f"{value:,}"
    for unit in "kMGTPE":
        value /= 1000
        if abs(value) < 1000 or unit == "E":
            return f"{value:.1f}{unit}" if abs(value) < 100 else f"{value:.0f}{unit}"
    raise AssertionError


def size(value: float) -> str:
    """Bytes as people read them, with two digits at the least: 640 KiB, 9.5 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} GiB"


def share(value: float | None) -> str:
    """A share as per cent."""
    if value is None:
        return NONE
    per_cent = value * 100
    return f"{per_cent:.0f}%" if per_cent >= 9.95 or per_cent < 0.05 else f"{per_cent:.1f}%"


def seconds(value: float | None) -> str:
    if value is None:
        return NONE
    if 0 < value < 0.000_95:
        return f"{value * 1e6:.0f} µs"
    if value < 0.0995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"


def clock(value: float) -> str:
    """Time since the beginning: `1:05`, `2:01:05`."""
    whole = int(value)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def score(value: float | None) -> str:
    """A score, in five cells if it lies between 0 and 1; a dash for None."""
    if value is None:
        return NONE
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


def bar(part: float, width: int) -> str:
    """A bar of up to `width` cells; any part above 0 shows at least an eighth of a cell."""
    part = min(max(part, 0.0), 1.0) if math.isfinite(part) else 0.0
    eighths = round(part * width * 8)
    if part > 0:
        eighths = max(eighths, 1)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_LEFT[rest] if rest else "")


def trend(values: Sequence[float]) -> str:
    """Values as a line of one height, the highest of them the whole of it."""
    return graph(values, len(values), 1)[0]


def resampled(values: Sequence[float], width: int, *, most: bool = False) -> list[float]:
    """As many values as there are cells: means, or the greatest, of neighbours; fewer are left as they are."""
    if len(values) <= width:
        return list(values)
    samples = []
    for cell in range(width):
        part = values[
            cell * len(values) // width : max((cell + 1) * len(values) // width, cell * len(values) // width + 1)
        ]
        samples.append(max(part) if most else sum(part) / len(part))
    return samples


def graph(values: Sequence[float], width: int, height: int) -> list[str]:
    """Columns over time, the latest at the right, as `height` lines from the top down."""
    shown = resampled(values, width, most=True)
    highest = max(shown, default=0.0)
    lines = []
    levels = [0 if highest <= 0 else _level(value / highest, height) for value in shown]
    for row in range(height - 1, -1, -1):
        cells = (_EIGHTHS[min(max(level - row * 8, 0), 8)] for level in levels)
        lines.append("".join(cells).rjust(width))
    return lines


def _level(part: float, height: int) -> int:
    level = round(min(max(part, 0.0), 1.0) * height * 8)
    return max(level, 1) if part > 0 else 0

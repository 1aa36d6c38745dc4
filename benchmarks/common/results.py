"""Turns, medians, goals, and the JSON and markdown that every benchmark writes."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.machine import describe, sentence


@dataclass(frozen=True)
class Ratio:
    """A ratio of two sides' times or figures: the median over the repeats, and the lowest and highest repeat."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Ratio:
        return cls(round(statistics.median(values), 3), round(min(values), 3), round(max(values), 3))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True)
class Goal:
    """What was to be reached, what was, and whether that is enough."""

    what: str
    goal: float
    reached: float

    @property
    def met(self) -> bool:
        return self.reached >= self.goal

    def __str__(self) -> str:
        return f"| {self.what} | {self.goal:g} | {self.reached:.2f} | {'met' if self.met else '**missed**'} |"


def goal_table(goals: list[Goal]) -> str:
    """Goals as a markdown table; nothing where there are none."""
    if not goals:
        return ""
    return "\n".join(["| goal | at least | reached | |", "|---|---:|---:|---|", *map(str, goals)])


_CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def turns(
    sides: Mapping[str, Callable[[], Any]], repeats: int, clock: str, warm: bool = False
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Runs the sides in turn, `repeats` times, after one more round where they are not `warm` yet.

    Returns the seconds of each side, a repeat each, and what it returned last. Every other round runs backwards, so
    that no side always comes after the same one.
    """
    now = _CLOCKS[clock]
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    returned: dict[str, Any] = {}
    for repeat in range(repeats + (not warm)):
        for name in list(sides)[:: 1 if repeat % 2 == 0 else -1]:
            start = now()
            returned[name] = sides[name]()
            if warm or repeat:
                seconds[name].append(now() - start)
    return seconds, returned


def speedup(seconds: Mapping[str, list[float]], side: str, over: str) -> Ratio:
    """How many times faster `side` was than `over`, repeat by repeat."""
    return Ratio.of([b / a for a, b in zip(seconds[side], seconds[over], strict=True)])


def machine_line() -> str:
    return f"Measured on: {sentence()}."


def write(output: Path, name: str, text: str, record: Mapping[str, Any], goals: list[Goal] | None = None) -> None:
    """Writes `NAME.json` (with the machine) and `NAME.md`, and prints the latter."""
    output.mkdir(parents=True, exist_ok=True)
    whole: dict[str, Any] = {"machine": describe(), **record}
    if goals is not None:
        whole["goals"] = [{"what": g.what, "goal": g.goal, "reached": g.reached, "met": g.met} for g in goals]
    (output / f"{name}.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    (output / f"{name}.md").write_text(text, encoding="utf-8")
    print(text)


def absent_line(absent: Mapping[str, str]) -> str:
    """Which peers are not in a table, and why; nothing where all are."""
    return "".join(f"\nWithout {name}: {reason}.\n" for name, reason in absent.items())

"""The figures that a dashboard prints, read off its screens as a user reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qpdsl.tui.state.compare import OtherRuns
from qpdsl.tui.state.event_source import EventSource
from tests.support.tui.screen import dashboard, settle, text

WIDTH, HEIGHT = 150, 44
_HEADER = 2
_WORDS = ("waiting", "running", "done", "right", "wrong", "failed")
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6}


@dataclass(frozen=True)
class Screens:
    """`figures` by what they are of; `bodies` are texts of screens that do not depend on time, by name."""

    figures: dict[str, Any]
    bodies: dict[str, str]


async def read(source: EventSource | Path, rows: int, runs: OtherRuns | None = None) -> Screens:
    """Goes through all screens of a process that has ended, `rows` of which lie on the first page."""
    # A replay has a line more, for its position.
    async with dashboard(source, (WIDTH, HEIGHT + isinstance(source, Path)), runs=runs) as pilot:

        async def keyed(*keys: str) -> str:
            """The screen after these keys. What they change is drawn by them: nothing happens any more by itself."""
            await pilot.press(*keys)
            await pilot.pause()
            return text(pilot.app)  # type: ignore[arg-type]

        first = await settle(pilot)
        figures = dict(_header(first))
        if "1 Cells" in first:
            return Screens({**figures, "cells": _cells(first)}, {"Cells": _body(first)})
        texts = {"Plan": first, "Tokens": await keyed("u")}
        await keyed("escape")
        texts["Engine"] = await keyed("4")
        texts["Compare"] = await keyed("5")
        texts["Rows"] = await keyed("2", "home")
        details, searched = [], []
        for _ in range(rows):
            details.append(await keyed("d"))
            searched.append(await keyed("escape", "enter"))
            await keyed("2", "down")
    counts = _counts(texts["Rows"])
    figures |= {name: counts[name] for name in ("failed", "right")}
    figures["at work"] = counts["waiting"] + counts["running"]
    tokens = [_found(r"tokens +([\d,]+) in, ([\d,]+) out", text) for text in details]
    figures["tokens in"], figures["tokens out"] = ([own[at] if own else None for own in tokens] for at in (0, 1))
    figures["tokens in all"] = (_found(r"in all +([\d,]+)", texts["Tokens"]) or [0])[0]
    figures["searched"] = list(map(_searched, searched))
    for name in ("requests", "sent again"):
        figures[name] = sum(map(_number, re.findall(rf"{name} +([\d,]+)", texts["Engine"])))
    there = [panel for panel in texts["Engine"].split("╭") if "://" in panel.split("\n")[0]]
    sent = [re.search(r"tokens +([\d,.kM]+) in, ([\d,.kM]+) out", panel) for panel in there]
    figures["tokens at servers"] = [sum(_rounded(own[at]) for own in sent if own is not None) for at in (1, 2)]
    flipped = _found(r"(\d+) gained, (\d+) lost", texts["Compare"]) or (None, None)
    figures["gained"], figures["lost"] = flipped
    beside = re.search(r"\bwith (\S+)  ", texts["Compare"])
    figures["beside"] = None if beside is None else beside[1]
    bodies = {f"Search of row {number}": _body(text) for number, text in enumerate(searched)}
    return Screens(figures, {"Rows": _body(texts["Rows"]), **bodies})


def _body(text: str) -> str:
    """A screen without the lines around it, and without times and what a replay alone has."""
    lines = text.splitlines()[_HEADER:]
    kept = [line for line in lines if " event " not in line and " q Leave" not in line]
    return "\n".join(re.sub(r"\d+(\.\d+)? m?s\b", "", line).rstrip() for line in kept).strip()


def _header(text: str) -> Iterator[tuple[str, Any]]:
    head = "\n".join(text.splitlines()[:_HEADER])
    phase = re.search(r"all failed|done|failed|running|interrupted|preparing", head)
    yield "phase", phase and phase[0]
    yield "rows", tuple(_found(r"([\d,]+)/([\d,]+) rows", head) or ()) or None
    yield "failed in the header", (_found(r"✖ ([\d,]+) failed", head) or [0])[0]
    yield "without an answer", (_found(r"([\d,]+) without an answer", head) or [0])[0]
    for name, pattern in (("share right", r"(\d+)% ±\d+ right"), ("greedy right", r"greedy ([\d.]+)%")):
        share = re.search(pattern, head)
        yield name, None if share is None else float(share[1])


def _counts(rows: str) -> dict[str, int]:
    """How many rows have each status, by the last lines of the screen, and by the lines of the rows themselves."""
    told = dict.fromkeys(_WORDS, 0)
    foot = next((line for line in reversed(rows.splitlines()) if re.match(r" +[·●✔≠✖] \d", line)), "")
    for count, word in re.findall(r"([\d,]+) (\w+)", foot):
        if word in told:
            told[word] = _number(count)
    return told


def _cells(text: str) -> list[dict[str, Any]]:
    """The lines of a sweep's table, by where their columns stand."""
    lines = text.splitlines()
    head = next(line for line in lines if "tokens a row" in line)
    ends = {name: head.index(name) + len(name) for name in ("rows", "right", "failed", "tokens a row") if name in head}
    cells = []
    for line in lines[lines.index(head) + 1 :]:
        if not re.match(r"[▌ ]*[✔●·] ", line):
            break

        def told(name: str, line: str = line) -> str:
            """What ends where the name of its column does, without how sure it is; empty where there is nothing."""
            end = ends.get(name)
            own = None if end is None else re.search(r"(\S+)( ±\d+)?$", line[:end])
            return own[1] if own else ""

        right, failed, tokens = told("right"), told("failed"), told("tokens a row")
        cells.append(
            {
                "rows": tuple(map(_number, told("rows").split("/"))),
                "failed": _number(failed or "0"),
                "right": float(right.rstrip("%")) if right else None,
                "tokens a row": _rounded(tokens) if tokens else 0.0,
            }
        )
    return cells


def _searched(text: str) -> str:
    """What a row's search says of itself."""
    if "replicas send no candidates" in text:
        return "none"
    if "★" in text:
        return "answer"
    return "failed" if "✖" in "\n".join(text.splitlines()[_HEADER:]) else "nothing"


def _found(pattern: str, text: str) -> list[int] | None:
    found = re.search(pattern, text)
    return None if found is None else [_number(part) for part in found.groups()]


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _rounded(text: str) -> float:
    """A figure as `1,234` or `12.3k`."""
    unit = text[-1] if text[-1] in _UNITS else ""
    return float(text.removesuffix(unit).replace(",", "")) * _UNITS[unit]

"""The palette: what the dashboard can be told by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from textual.command import DiscoveryHit, Hit, Hits, Provider

_COMMANDS = (
    ("Next failure", "next_row('failed')", "The search of the next row that failed (!)"),
    ("Next wrong row", "next_row('wrong')", "The search of the next row with a wrong answer (w)"),
    ("Filter rows", "filter", "Those with some words, a status or an operator (/)"),
    ("Compare", "compare", "Beside which saved run this one is set (c)"),
    ("Rules", "rules", "What each rule of the plan has saved (r)"),
    ("Where the tokens went", "usage", "By operator, round, model and what became of them (u)"),
    ("Copy", "copy", "A text, a path, a prompt, the command that repeats a row (y)"),
    ("Verifier", "verifier", "Whether its scores tell right from wrong (v)"),
    ("Next theme", "next_theme", "Dark, light, high contrast (t)"),
    ("Words and keys", "explain", "What the words under the cursor mean, and all keys (?)"),
    ("Notes", "notes", "What was skipped or missed (n)"),
    ("Leave", "leave", "Close the dashboard (q)"),
)
# What each screen has.
_HELP = {
    "plan": "The operators and their figures",
    "search": "The tree of candidates",
    "engine": "Memory, batches, tokens a second",
    "rows": "The inputs and their answers",
    "compare": "This run beside a saved one",
    "cells": "The programs and values side by side",
    "requests": "What clients ask, and how long it takes",
}
_REPLAY = (
    ("Pause or play", "play", "space"),
    ("Faster", "faster(1)", "+"),
    ("Slower", "faster(-1)", "-"),
    ("One event on", "step(1)", "."),
    ("One event back", "step(-1)", ","),
    ("To the beginning", "seek(0)", "("),
    ("To the end", "seek(1)", ")"),
)


class Commanded(Protocol):
    """What the commands are for: it has these screens now, and plays a recorded run or not."""

    @property
    def screens(self) -> tuple[str, ...]: ...
    @property
    def replaying(self) -> bool: ...


class Commands(Provider):
    """The commands that the palette searches."""

    async def discover(self) -> Hits:
        for name, action, help_ in self._all():
            yield DiscoveryHit(name, self._runner(action), help=help_)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, action, help_ in self._all():
            score = matcher.match(name)
            if score > 0:
                yield Hit(score, matcher.highlight(name), self._runner(action), help=help_)

    def _all(self) -> Iterator[tuple[str, str, str]]:
        app: Commanded = self.app  # type: ignore[assignment]
        for number, name in enumerate(app.screens, 1):
            yield f"Show {name.title()}", f"screen('{name}')", f"{_HELP[name]} ({number})"
        yield from _COMMANDS
        if app.replaying:
            yield from _REPLAY

    def _runner(self, action: str) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            await self.app.run_action(action)

        return run

"""The palette: what the dashboard can be told by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple, Protocol

from textual.command import DiscoveryHit, Hit, Hits, Provider


class PaletteCommand(NamedTuple):
    """Something to do, by its name in the palette; `does` is what for, and `key` does the same."""

    name: str
    action: str
    key: str
    does: str


_COMMANDS = (
    PaletteCommand("Next failure", "next_row('failed')", "!", "the search of the next row that failed"),
    PaletteCommand("Next wrong row", "next_row('wrong')", "w", "the search of the next row with a wrong answer"),
    PaletteCommand("Filter rows", "filter", "/", "the rows with some words, a status or an operator"),
    PaletteCommand("Compare", "compare", "c", "beside which saved run this one is set"),
    PaletteCommand("Rules", "rules", "r", "what each rule of the plan has saved"),
    PaletteCommand(
        "Where the tokens went", "usage", "u", "the tokens by operator, round, model and what became of them"
    ),
    PaletteCommand("Copy", "copy", "y", "copy a text, a path, a prompt, the command that repeats a row"),
    PaletteCommand("Verifier", "verifier", "v", "whether the verifier's scores tell right from wrong; esc goes back"),
    PaletteCommand("Next theme", "next_theme", "t", "the next theme: dark, light, high contrast"),
    PaletteCommand("Words and keys", "explain", "?", "what the words under the cursor mean, and all keys"),
    PaletteCommand("Notes", "notes", "n", "what was skipped or missed"),
    PaletteCommand("Leave", "leave", "q", "close the dashboard"),
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
    PaletteCommand("Pause or play", "play", "space", "replay: pause and go on (p on Search)"),
    PaletteCommand("Faster", "faster(1)", "+", "replay: faster"),
    PaletteCommand("Slower", "faster(-1)", "-", "replay: slower"),
    PaletteCommand("One event on", "step(1)", ".", "replay: one event on"),
    PaletteCommand("One event back", "step(-1)", ",", "replay: one event back"),
    PaletteCommand("To the beginning", "seek(0)", "(", "replay: to the beginning"),
    PaletteCommand("To the end", "seek(1)", ")", "replay: to the end"),
)


class Commanded(Protocol):
    """What the commands are for: it has these screens now, and plays a recorded run or not."""

    @property
    def screens(self) -> tuple[str, ...]: ...
    @property
    def replaying(self) -> bool: ...


def commands_of(app: Commanded) -> tuple[PaletteCommand, ...]:
    """What it can be told whatever screen is shown."""
    return (*_COMMANDS, *_REPLAY) if app.replaying else _COMMANDS


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
        """Names, actions and what they are for."""
        app: Commanded = self.app  # type: ignore[assignment]
        for number, name in enumerate(app.screens, 1):
            yield f"Show {name.title()}", f"screen('{name}')", f"{_HELP[name]} ({number})"
        for command in commands_of(app):
            yield command.name, command.action, f"{command.does[:1].upper()}{command.does[1:]} ({command.key})"

    def _runner(self, action: str) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            await self.app.run_action(action)

        return run

"""The commands of the palette: everything that a key does, by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from textual.command import DiscoveryHit, Hit, Hits, Provider

_COMMANDS = (
    ("Show the plan", "screen('plan')", "The operators and their figures (1)"),
    ("Show the search", "screen('search')", "The tree of candidates (2)"),
    ("Show the engine", "screen('engine')", "Memory, batches, tokens a second (3)"),
    ("Show the rows", "screen('rows')", "The inputs and their answers (4)"),
    ("Next theme", "next_theme", "Dark, light, high contrast (t)"),
    ("Keys", "keys", "All keys on one page (?)"),
    ("Notes", "notes", "What was skipped or missed (n)"),
    ("Leave", "leave", "Close the dashboard (q)"),
)
_REPLAY = (
    ("Pause or play", "play", "space"),
    ("Faster", "faster(1)", "+"),
    ("Slower", "faster(-1)", "-"),
    ("One event on", "step(1)", "."),
    ("One event back", "step(-1)", ","),
    ("To the beginning", "seek(0)", "("),
    ("To the end", "seek(1)", ")"),
)


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
        yield from _COMMANDS
        if getattr(self.app, "replaying", False):
            yield from _REPLAY

    def _runner(self, action: str) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            await self.app.run_action(action)

        return run

"""The keys of the current screen, on one line; a click on a key works like the key."""

from __future__ import annotations

from rich.text import Text
from textual import events
from textual.binding import ActiveBinding
from textual.widget import Widget

from qpdsl.grammar.width import cells
from qpdsl.tui.widgets.palette import Palette


class KeyLine(Widget):
    """One widget that draws all keys at once. Textual's own footer lays out a widget for each key, which is slower."""

    def __init__(self) -> None:
        super().__init__(id="keys")
        self._places: list[tuple[int, int, str]] = []

    def render(self) -> Text:
        palette = Palette.of(self.app)
        line = Text(" ", end="", no_wrap=True)
        self._places = []
        for active in self._shown():
            binding = active.binding
            key = binding.key_display or self.app.get_key_display(binding)
            size = cells(f"{key} {binding.description}  ")
            at = cells(line.plain)
            if at + size > self.size.width + 2:
                break
            line.append(f"{key} ", f"bold {palette.accent}").append(f"{binding.description}  ", palette.muted)
            self._places.append((at, at + size - 2, binding.action))
        return line

    async def on_click(self, event: events.Click) -> None:
        for first, end, action in self._places:
            if first <= event.x < end:
                view = self.app.query_one("#views").query(f"#{getattr(self.app, 'picked', '')}").first()
                known = hasattr(view, f"action_{action.partition('(')[0]}")
                await self.app.run_action(action, default_namespace=view if known else self.app)

    def _shown(self) -> list[ActiveBinding]:
        """Each action once: first what every screen has, the way out at the front."""
        bindings: dict[str, ActiveBinding] = {}
        for active in self.screen.active_bindings.values():
            if active.binding.show and active.enabled:
                bindings.setdefault(active.binding.action, active)
        return list(bindings.values())

"""A list of lines with a cursor. Only lines in sight are drawn, so 20,000 lines are as quick as 20."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from qpdsl.tui.widgets.palette import Palette


class LineList(ScrollView, can_focus=True):
    """Subclasses say how many lines there are (`set_count`) and what one looks like (`line`)."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "first", "First", show=False),
        Binding("end,G", "last", "Last", show=False),
        Binding("enter", "choose", "Open", key_display="enter"),
    ]

    cursor: reactive[int] = reactive(0)

    class Moved(Message):
        """The cursor stands on another line."""

        def __init__(self, lines: LineList, index: int) -> None:
            super().__init__()
            self.lines, self.index = lines, index

        @property
        def control(self) -> LineList:
            return self.lines

    class Entered(Moved):
        """A line was opened: by enter, or by a click on the line of the cursor."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.items: Sequence[Any] = ()
        self.count = 0
        self.palette: Palette | None = None
        self.by_hand = False

    def line(self, index: int, width: int, palette: Palette) -> Text:
        """One line, in colours of the palette."""
        raise NotImplementedError

    @property
    def item(self) -> Any:
        """What the line of the cursor shows, None where there is none."""
        return self.items[self.cursor] if self.cursor < len(self.items) else None

    def set_items(self, items: Sequence[Any], name: Callable[[Any], object]) -> None:
        """Shows these, a line each. The cursor stays on the one that it is on, which is known by its `name`."""
        before, self.items = self.item, items
        if before is not None and (self.item is None or name(self.item) != name(before)):
            at = next((at for at, item in enumerate(items) if name(item) == name(before)), None)
            if at is not None:
                self.set_reactive(LineList.cursor, at)
        self.set_count(len(items))

    def set_count(self, count: int) -> None:
        """Says that the lines have changed."""
        self.count = count
        self.palette = None
        size = Size(max(self.scrollable_content_region.width, 1), count)
        if self.virtual_size != size:
            self.virtual_size = size
        if self.cursor >= max(count, 1):
            self.cursor = max(count - 1, 0)
        self.refresh()

    def point(self, index: int) -> None:
        """Puts the cursor on a line and shows it."""
        self.cursor = max(0, min(index, self.count - 1))
        self.show_cursor()

    def show_cursor(self) -> None:
        height = max(self.size.height, 1)
        top = self.scroll_offset.y
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, immediate=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, immediate=True)

    def watch_cursor(self, before: int, now: int) -> None:
        self.refresh()
        if before != now:
            self.post_message(self.Moved(self, now))

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        index = y + self.scroll_offset.y
        base = self.rich_style
        if index >= self.count:
            return Strip.blank(width, base)
        if self.palette is None:
            self.palette = Palette.of(self.app)
        here = index == self.cursor
        text = Text("▌" if here and self.has_focus else "▏" if here else " ", end="", no_wrap=True)
        text.stylize(self.palette.accent)
        text.append_text(self.line(index, width - 1, self.palette))
        strip = Strip(text.render(self.app.console)).adjust_cell_length(width)
        if here:
            base = base + Style(bgcolor=self.palette.panel, bold=self.has_focus or None)
        return strip.apply_style(base).crop(0, width)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def on_resize(self) -> None:
        self.set_count(self.count)
        self.show_cursor()

    def on_click(self, event: events.Click) -> None:
        index = event.y + self.scroll_offset.y
        if not 0 <= index < self.count:
            return
        self.by_hand = True
        if index == self.cursor and event.chain == 2:
            self.action_choose()
        self.point(index)

    def action_move(self, by: int) -> None:
        self.by_hand = True
        self.point(self.cursor + by)

    def action_page(self, by: int) -> None:
        self.action_move(by * max(self.size.height - 1, 1))

    def action_first(self) -> None:
        self.action_move(-self.count)

    def action_last(self) -> None:
        self.action_move(self.count)

    def action_choose(self) -> None:
        self.post_message(self.Entered(self, self.cursor))

"""The lines around a screen: program, progress and screens at the top, a replay's position, and the keys at the
bottom.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text
from textual import events
from textual.binding import ActiveBinding
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from qpdsl.grammar.printable import cells, one_line, shorten
from qpdsl.tui.state.compare import OtherRun, RowPair, common_rows, interval
from qpdsl.tui.state.event_source import Player
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.widgets import figures
from qpdsl.tui.widgets.palette import Palette

SCREENS = ("plan", "rows", "search", "engine", "compare")
# Those of a command that has others.
_OTHERS = {"eval": ("cells", "engine"), "serve": ("requests", "engine")}
# Sign, word, and the palette's colour.
_PHASES = {
    "waiting": ("◌", "waiting for the run", "muted"),
    "preparing": ("◌", "preparing", "warn"),
    "running": ("●", "running", "good"),
    "done": ("✔", "done", "good"),
    "failed": ("✖", "failed", "bad"),
    "interrupted": ("■", "interrupted", "warn"),
    "gone": ("✖", "the run is gone", "bad"),
}
# Of the keys that every screen has.
_FIRST = ("leave", "explain", "play")
# From these widths on there is room for the names of all screens, and for blanks.
_TABS = 48
_ROOMY = 100
# Cells that a state has in the first line however long the program's name is.
_STATE = 12
_ALL_FAILED = ("✖", "all failed", "bad")


def screens_of(state: RunState) -> tuple[str, ...]:
    """The screens that a process has, in the order of their numbers."""
    return _OTHERS.get(state.command, SCREENS)


def cost(state: RunState) -> str:
    """What servers took, against its bound; empty where nothing says what they cost."""
    most = None if state.begun is None else state.begun.max_cost
    if not state.cost and most is None:
        return ""
    return f"cost {state.cost:.3g}" + ("" if most is None else f" of {most:g}")


class Title(Widget):
    """The two lines at the top: the program and its progress, and the screens by number. A click on one opens it."""

    class Picked(Message):
        def __init__(self, screen: str) -> None:
            super().__init__()
            self.screen = screen

    def __init__(self) -> None:
        super().__init__(id="head")
        self._state = RunState()
        self._phase = "waiting"
        self._elapsed = 0.0
        self._picked = SCREENS[0]
        self._last: OtherRun | None = None
        self._common: tuple[tuple[int, int], list[RowPair]] = ((0, 0), [])

    def show(self, state: RunState, phase: str, elapsed: float, picked: str) -> None:
        self._state, self._phase, self._elapsed, self._picked = state, phase, elapsed, picked
        self.refresh()

    def show_last(self, run: OtherRun) -> None:
        """Says from now on how well that run did on the rows that both have graded."""
        self._last = run
        self.refresh()

    def render(self) -> Text:
        palette = Palette.of(self.app)
        return Text("\n").join([self._figures(palette), self._tabs(palette)])

    def on_click(self, event: events.Click) -> None:
        if event.y == 1:
            at = 0
            for number, name in enumerate(screens_of(self._state), 1):
                width = len(self._tab(number, name))
                if at <= event.x < at + width:
                    self.post_message(self.Picked(name))
                at += width

    def _figures(self, palette: Palette) -> Text:
        state, width = self._state, self.size.width
        sign, word, colour = _PHASES.get(self._phase, ("●", one_line(self._phase), "muted"))
        if self._phase == "done" and state.failed:
            # A run that came to its end with rows that failed is not as good as it looks.
            sign, word, colour = _ALL_FAILED if state.failed == state.done else (sign, word, "warn")
        title = shorten(one_line(self._title()), max(width - min(cells(word), _STATE) - 7, 8))
        left = Text.assemble((" ◆ ", palette.accent), (title, "bold"))
        if self._phase == "preparing" and state.step:
            word = shorten(one_line(state.step), max(width - left.cell_len - 12, 12))
        right = Text.assemble((f"{sign} {word}", f"bold {getattr(palette, colour)}"))
        parts = [(figures.clock(self._elapsed), palette.text)]
        if state.command == "eval":
            parts += self._of_sweep(palette)
        elif state.command == "serve":
            parts += self._of_server(palette)
        elif state.total > 1:
            parts.append((f"{state.done:,}/{state.total:,} rows", palette.text))
        left_over = state.left(self._elapsed) if self._phase == "running" else None
        if left_over is not None:
            between = state.left_between(self._elapsed) or (left_over,)
            words = dict.fromkeys(figures.clock(seconds) for seconds in between)
            parts.append((f"{'–'.join(words)} left", palette.text))
        if state.failed:
            parts.append((f"✖ {state.failed:,} failed", palette.bad))
        if state.unanswered:
            parts.append((f"{state.unanswered:,} without an answer", palette.warn))
        if state.late:
            parts.append((f"{state.late:,} late", palette.warn))
        if self._phase == "running" and (state.models or state.servers):
            parts.append((f"{figures.count(state.rate())} tok/s", palette.text))
        again = sum(server.latest.again for server in state.servers.values())
        if again and state.ended is None:
            parts.append((f"{again:,} to be sent again", palette.warn))
        for text, style in parts:
            if cells(left.plain) + cells(right.plain) + cells(text) + 6 > width:
                break
            right.append("  ").append(text, style)
        space = max(width - cells(left.plain) - cells(right.plain) - 1, 1)
        return left.append(" " * space).append_text(right)

    def _of_sweep(self, palette: Palette) -> list[tuple[str, str]]:
        """Rows of all cells, and what is left."""
        cells = self._state.cells.values()
        done, rows = sum(cell.done for cell in cells), sum(cell.rows for cell in cells)
        failed = sum(cell.failed for cell in cells)
        parts = [(f"{done:,}/{rows:,} rows", palette.text)] if rows else []
        return [*parts, (f"✖ {failed:,} failed", palette.bad)] if failed else parts

    def _of_server(self, palette: Palette) -> list[tuple[str, str]]:
        """Requests that run and that wait."""
        statuses = [request.status for request in self._state.requests.values()]
        running, waiting = statuses.count("running"), statuses.count("waiting")
        return [
            (f"{running:,} running", palette.text),
            (f"{waiting:,} waiting", palette.warn if waiting else palette.muted),
        ]

    def _title(self) -> str:
        plan, process = self._state.plan, self._state.process
        if plan is None:
            return "qpdsl" if process is None else " ".join([process.command, ", ".join(process.programs)])
        return plan.source.rsplit("/", 1)[-1] if plan.source.endswith(".qp") else plan.name

    def _tab(self, number: int, name: str) -> str:
        """A screen's number and name; where there is little room, of the others the number alone."""
        named = name == self._picked or self.size.width >= _TABS
        return f" {number} {name.title()} " if named else f" {number} "

    def _tabs(self, palette: Palette) -> Text:
        line = Text()
        for number, name in enumerate(screens_of(self._state), 1):
            on = name == self._picked
            style = f"bold {palette.background} on {palette.accent}" if on else palette.muted
            line.append(self._tab(number, name), f"{style} underline" if on else style)
        told, between = Text(), "  " if self.size.width >= _ROOMY else " "
        for text, style in self._told(palette):
            if cells(line.plain) + told.cell_len + cells(text) + len(between) * bool(told) + 1 > self.size.width:
                break
            told.append(between if told else "").append(text, style)
        return line.append(" " * max(self.size.width - cells(line.plain) - told.cell_len - 1, 0)).append_text(told)

    def _graded_in_both(self, last: OtherRun) -> list[RowPair]:
        stamp = id(self._state), self._state.done
        if stamp != self._common[0]:
            self._common = stamp, [pair for pair in common_rows(self._state, last) if pair.graded]
        return self._common[1]

    def _told(self, palette: Palette) -> Iterator[tuple[str, str]]:
        """What is short, how well the run does beside greedy decoding and the last run, and what it costs."""
        state = self._state
        if state.replayed:
            roomy = self.size.width >= _ROOMY
            yield "replayed: times are not the run's" if roomy else "times replayed", palette.warn
        if state.lost:
            yield f"{figures.count(state.lost)} events were missed: counts are too low", palette.warn
        if state.shortage is not None:
            yield "⚠ memory is short", palette.bad
        if state.judged and state.total > 1:
            sure = interval(state.right, state.judged)
            share = state.right / state.judged
            off = max(sure.high - share, share - sure.low)
            right = (
                f"{share:.0%} ±{off * 100:.0f}" if self.size.width >= _ROOMY else f"{share * 100:.0f}±{off * 100:.0f}%"
            )
            yield f"{right} right", palette.text
            if state.greedy_judged:
                yield f"greedy {figures.share(state.greedy_right / state.greedy_judged)}", palette.muted
            if self._last is not None and (pairs := self._graded_in_both(self._last)):
                right = f"last {figures.share(sum(pair.there.correct is True for pair in pairs) / len(pairs))}"
                is_part = len(pairs) < state.judged and self.size.width >= _ROOMY
                yield right + f" on {len(pairs):,} of the rows" * is_part, palette.muted
        if money := cost(state):
            yield money, palette.text


class Transport(Widget):
    """Drag or click to jump."""

    class Sought(Message):
        def __init__(self, part: float) -> None:
            super().__init__()
            self.part = part

    def __init__(self, player: Player) -> None:
        super().__init__(id="transport")
        self._player = player
        self._bar = (0, 1)

    def render(self) -> Text:
        palette, player = Palette.of(self.app), self._player
        playing = not player.paused
        left = Text.assemble(
            (" ▶ " if playing else " ‖ ", f"bold {palette.good if playing else palette.warn}"),
            (f"{'playing' if playing else 'paused':<8}", palette.text),
            (f"{player.speed:g}×".ljust(6), palette.text),
        )
        number, total = player.event_number
        right = f" {figures.clock(player.position)} of {figures.clock(player.duration)}  event {number:,} of {total:,}"
        right += "" if player.loaded else "  loading"
        room = self.size.width - cells(left.plain) - cells(right) - 1
        if room < 8:
            right = f" {figures.clock(player.position)}/{figures.clock(player.duration)}"
            room = max(self.size.width - cells(left.plain) - cells(right) - 1, 1)
        part = player.position / player.duration if player.duration else 0.0
        at = min(round(part * (room - 1)), room - 1)
        self._bar = (cells(left.plain), room)
        left.append("━" * at, palette.accent).append("●", f"bold {palette.accent}")
        return left.append("─" * (room - at - 1), palette.faint).append(right, palette.muted)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self.capture_mouse()
        self._jump(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if event.button:
            self._jump(event.x)

    def on_mouse_up(self) -> None:
        self.release_mouse()

    def _jump(self, x: int) -> None:
        first, room = self._bar
        self.post_message(self.Sought(min(max((x - first) / max(room - 1, 1), 0.0), 1.0)))


class KeyLine(Widget):
    """One widget that draws all keys at once. Textual's own footer lays out a widget for each key, which is slower."""

    def __init__(self, player: Player | None) -> None:
        super().__init__(id="keys")
        self._state, self._player = RunState(), player
        self._places: list[tuple[int, int, str]] = []

    def render(self) -> Text:
        palette = Palette.of(self.app)
        line = Text(" ", end="", no_wrap=True)
        self._places = []
        if isinstance(self.screen.focused, Input):
            for key, words in (("enter", "Keep these"), ("esc", "Show all")):
                line.append(f"{key} ", f"bold {palette.accent}").append(f"{words}  ", palette.muted)
            return line
        for active in self._shown():
            binding = active.binding
            words = binding.description
            if binding.action == "play" and self._player is not None and self._player.paused:
                words = "Play"
            key = binding.key_display or self.app.get_key_display(binding)
            size = cells(f"{key} {words}  ")
            at = cells(line.plain)
            if at + size > self.size.width + 2:
                break
            line.append(f"{key} ", f"bold {palette.accent}").append(f"{words}  ", palette.muted)
            self._places.append((at, at + size - 2, binding.action))
        return line

    async def on_click(self, event: events.Click) -> None:
        for first, end, action in self._places:
            if first <= event.x < end:
                view = self.app.query_one("#views").query(f"#{getattr(self.app, 'picked', '')}").first()
                known = hasattr(view, f"action_{action.partition('(')[0]}")
                await self.app.run_action(action, default_namespace=view if known else self.app)

    def show(self, state: RunState) -> None:
        self._state = state
        self.refresh()

    def _shown(self) -> list[ActiveBinding]:
        """Each action once that has something to do now: first those of the screen, then the way out and the help."""
        bindings: dict[str, ActiveBinding] = {}
        for active in self.screen.active_bindings.values():
            if active.binding.show and active.enabled and _has_use(active.binding.action, self._state):
                bindings.setdefault(active.binding.action, active)
        return sorted(
            bindings.values(), key=lambda active: (active.node is self.app, active.binding.action not in _FIRST)
        )


def _has_use(action: str, state: RunState) -> bool:
    """Whether there is anything that a key could show."""
    if state.begun is None and not state.cells and not state.requests:
        return action in _FIRST
    if action in ("rules", "usage"):
        return state.plan is not None
    if action.startswith("next_row"):
        return any(action == f"next_row('{row.status}')" for row in state.rows.values())
    return action not in ("compare", "filter", "verifier") or "rows" in screens_of(state)

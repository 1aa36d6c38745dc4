"""The dashboard: screens over one source of events."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from subprocess import Popen
from typing import ClassVar

from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.driver import Driver
from textual.events import Key, Resize
from textual.filter import LineFilter
from textual.geometry import Size
from textual.screen import Screen
from textual.widgets import ContentSwitcher

from qpdsl.grammar.printable import one_line, shorten
from qpdsl.tui.changed_cells import ChangedCells, changing
from qpdsl.tui.commands import Commands, commands_of
from qpdsl.tui.resilient_app import ResilientApp, in_words
from qpdsl.tui.screens.cells import CellsView
from qpdsl.tui.screens.compare import CompareView
from qpdsl.tui.screens.engine import EngineView
from qpdsl.tui.screens.plan import PlanView, usage_facts
from qpdsl.tui.screens.requests import RequestsView
from qpdsl.tui.screens.rows import RowsView
from qpdsl.tui.screens.search import SearchView
from qpdsl.tui.screens.verifier import VerifierView
from qpdsl.tui.screens.view import View
from qpdsl.tui.state.compare import OtherRuns
from qpdsl.tui.state.decisions import effects
from qpdsl.tui.state.event_source import EventSource, Player, ReplaySource, SocketSource
from qpdsl.tui.terminal import as_it_was, is_behind, last_filters
from qpdsl.tui.widgets.bars import SCREENS, KeyLine, Title, Transport, screens_of
from qpdsl.tui.widgets.details import Details, Facts
from qpdsl.tui.widgets.glossary import KEYS, explained, rule_text
from qpdsl.tui.widgets.palette import THEMES
from qpdsl.tui.widgets.questions import ChoiceQuestion, Leave, LeaveQuestion

_FRAME = 0.25
_TICK = 1 / 30
# Bytes a second for what is drawn by itself; keys are answered at once, and what they draw counts.
_BYTES = 16_000
_JUMP = 0.05
# A page beside the screens, which has no number.
_VERIFIER = "verifier"


class DashboardFault(Exception):
    """The dashboard itself has failed. What it showed is not touched by that."""


class Dashboard(ResilientApp[Leave | None]):
    """`asks` says whether leaving must ask what to do with the run; `over` whether there is nothing left to watch."""

    TITLE = "qpdsl"
    CSS_PATH = "dashboard.tcss"
    OVER_ALL = ("turn", "leave", "quit")
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {Commands}
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"number({number})", f"Screen {number}", show=False)
            for number in range(1, len(SCREENS) + 1)
        ),
        Binding("tab", "turn(1)", "Next screen", show=False, priority=True),
        Binding("shift+tab", "turn(-1)", "Screen before", show=False, priority=True),
        Binding("exclamation_mark", "next_row('failed')", "Next failure", key_display="!"),
        Binding("w", "next_row('wrong')", "Next wrong"),
        Binding("c", "compare", "Compare"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("question_mark", "explain", "Help", key_display="?"),
        Binding("r", "rules", "Rules"),
        Binding("u", "usage", "Tokens"),
        Binding("y", "copy", "Copy"),
        Binding("v", "verifier", "Verifier"),
        Binding("escape", "up", "Back", show=False),
        Binding("t", "next_theme", "Theme", show=False),
        Binding("n", "notes", "Notes", show=False),
        Binding("space,p", "play", "Pause", key_display="p"),
        Binding("q,ctrl+c,ctrl+q", "leave", "Leave", key_display="q"),
        Binding("full_stop", "step(1)", "Step", show=False),
        Binding("comma", "step(-1)", "Step back", show=False),
        Binding("right", "jump(1)", "Jump", show=False),
        Binding("left", "jump(-1)", "Jump back", show=False),
        Binding("plus,equals_sign", "faster(1)", "Faster", show=False),
        Binding("minus", "faster(-1)", "Slower", show=False),
        Binding("left_parenthesis", "seek(0)", "To the beginning", show=False),
        Binding("right_parenthesis", "seek(1)", "To the end", show=False),
    ]

    def __init__(
        self,
        source: EventSource,
        *,
        asks: Callable[[], bool] = lambda: False,
        over: Callable[[], bool] = lambda: False,
        first: str = "plan",
        clocked: bool = True,
        runs: OtherRuns | None = None,
    ) -> None:
        self._cells = ChangedCells()
        super().__init__()
        for theme in THEMES:
            self.register_theme(theme)
        wanted = os.environ.get("QPDSL_THEME", "")
        self.theme = wanted if wanted in self.available_themes else THEMES[0].name
        self.source = source
        self.picked = first
        self._above: list[str] = []
        self._asks = asks
        self._over = over
        self._clocked = clocked
        self._runs = runs
        self._drawn: tuple[object, ...] = ()
        self._ticked = time.monotonic()
        self._paced = time.monotonic()
        self._owed = 0.0

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *last_filters()]

    def get_driver_class(self) -> type[Driver]:
        """The one of the platform, which writes only the cells that change."""
        return changing(super().get_driver_class(), self._cells)

    async def on_key(self, event: Key) -> None:
        """Closes a page of facts or a list that has no use for a key of the screen below, and carries that out."""
        over, below = self.screen, self.screen_stack[0].active_bindings.get(event.key)
        if not isinstance(over, (Details, ChoiceQuestion)) or event.key in over.active_bindings or below is None:
            return
        # The cursor of the screen below does not move unseen.
        if below.enabled and below.node in (self, self.view):
            event.prevent_default()
            self.pop_screen()
            await self.run_action(below.binding.action, below.node)

    @property
    def replaying(self) -> bool:
        return self.source.player is not None

    def compose(self) -> ComposeResult:
        yield Title()
        with ContentSwitcher(initial=self.picked, id="views"):
            yield PlanView("plan")
            yield SearchView("search")
            yield EngineView("engine")
            yield RowsView("rows")
            yield CellsView("cells")
            yield RequestsView("requests")
            yield CompareView("compare", self._runs)
            yield VerifierView(_VERIFIER)
        if self.source.player is not None:
            yield Transport(self.source.player)
        yield KeyLine(self.source.player)

    def on_mount(self) -> None:
        self.run_worker(self.source.follow())
        if self._clocked:
            self.set_interval(_TICK, self.tick)
            self.set_interval(_FRAME, self.draw_paced)
        self._place(self.size)
        self.action_screen(self.picked)

    def on_resize(self, event: Resize) -> None:
        # `self.size` is still that of before.
        self._cells.forget()
        self._place(event.size)

    def tick(self) -> None:
        """Tells the source how much time has passed."""
        now = time.monotonic()
        self.source.tick(min(now - self._ticked, 0.25))
        self._ticked = now
        if self._over():
            self.exit(None)

    def draw_paced(self) -> None:
        """Draws, unless the terminal has had its share of bytes, or has not taken what it was given."""
        now = time.monotonic()
        self._owed = max(self._owed - (now - self._paced) * _BYTES, 0.0) + self._cells.written
        self._paced, self._cells.written = now, 0
        if self._owed <= _BYTES * _FRAME and not is_behind():
            self.draw()

    def draw(self, *, force: bool = False) -> None:
        """Draws the current screen, if something on it has changed or with `force`."""
        state, source = self.source.state, self.source
        if state.changes and self.picked not in (*self.screens, _VERIFIER):
            # What it is has become known.
            self.action_screen(self.screens[0])
        self.query_one(CompareView).look_for_last(state)
        self.query_one(Title).show(state, source.phase, source.elapsed, self.picked)
        if self.source.player is not None:
            self.query_one(Transport).refresh()
        self.query_one(KeyLine).show(state)
        stamp = (id(state), state.changes, int(state.now), self.picked, source.phase)
        if force or stamp != self._drawn:
            self._drawn = stamp
            self.view.update(state)

    @property
    def view(self) -> View:
        return self.query_one(f"#{self.picked}", View)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keeps the keys of a replay from a live run."""
        if action in ("play", "step", "jump", "faster", "seek"):
            return self.replaying
        return True

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Of Textual's own commands, only the one that picks a theme."""
        yield SystemCommand("Theme", "Pick one of all themes", self.action_change_theme)

    def on_title_picked(self, message: Title.Picked) -> None:
        self.action_screen(message.screen)

    def on_plan_view_operator_opened(self, message: PlanView.OperatorOpened) -> None:
        self._go_down("rows")
        self.query_one(RowsView).show_those_in(message.operator)

    def on_view_opened(self, message: View.Opened) -> None:
        self._go_down("search")
        self.query_one(SearchView).open_row(message.row)

    def on_transport_sought(self, message: Transport.Sought) -> None:
        self.action_seek(message.part)

    def watch_theme(self, theme: str) -> None:
        """Draws everything again in the colours of the new theme."""
        if self.is_running:
            self.call_after_refresh(self.draw, force=True)

    def _go_down(self, name: str) -> None:
        self._above.append(self.picked)
        self.action_screen(name)

    def action_up(self) -> None:
        """Shows the screen again from which this one was opened."""
        if self._above:
            self.action_screen(self._above.pop())

    def action_screen(self, name: str) -> None:
        self.picked = name
        self.query_one("#views", ContentSwitcher).current = name
        self.view.take_focus()
        self.query_one(KeyLine).refresh()
        # It draws itself again where it is laid out in another size.
        self.draw(force=True)

    @property
    def screens(self) -> tuple[str, ...]:
        """The screens of what is watched, in the order of their numbers."""
        return screens_of(self.source.state)

    def action_number(self, number: int) -> None:
        if number <= len(self.screens):
            self.action_screen(self.screens[number - 1])

    def action_turn(self, by: int) -> None:
        if len(self.screen_stack) == 1:
            at = self.screens.index(self.picked) if self.picked in self.screens else -1
            self.action_screen(self.screens[(at + by) % len(self.screens)])
        else:
            self.screen.focus_next() if by > 0 else self.screen.focus_previous()

    def action_next_row(self, status: str) -> None:
        """Shows the search of the next row of this status, after the one that is shown."""
        rows, search = list(self.source.state.rows.values()), self.query_one(SearchView)
        at = next((at for at, row in enumerate(rows) if row.id == search.instance), -1)
        following = next((row for row in (*rows[at + 1 :], *rows[: at + 1]) if row.status == status), None)
        if following is None:
            self.notify(f"no row is {status}" if status != "failed" else "no row has failed")
            return
        if self.picked != "search":
            self._go_down("search")
        search.open_row(following.id)

    def action_filter(self) -> None:
        """Shows the rows, and asks for which of them."""
        if "rows" not in self.screens:
            self.notify("there are no rows to filter here")
            return
        if self.picked != "rows":
            self._go_down("rows")
        self.query_one(RowsView).action_filter()

    def action_verifier(self) -> None:
        """Shows what the verifier is worth, or what was on the screen before that."""
        if self.picked == _VERIFIER:
            self.action_up()
        elif "rows" in self.screens:
            self._go_down(_VERIFIER)

    def action_next_theme(self) -> None:
        names = [theme.name for theme in THEMES]
        at = names.index(self.theme) if self.theme in names else -1
        self.theme = names[(at + 1) % len(names)]

    def action_compare(self) -> None:
        """Asks beside which saved run this one is to be set."""
        if "compare" in self.screens:
            self.query_one(CompareView).ask()
        else:
            self.notify("there are no rows to compare here")

    def on_compare_view_last_found(self, message: CompareView.LastFound) -> None:
        self.query_one(Title).show_last(message.run)

    def on_compare_view_chosen(self) -> None:
        self.action_screen("compare")

    def action_rules(self) -> None:
        """What each rule of the plan has saved."""
        state, facts = self.source.state, Facts("What the rules of the plan have saved so far")
        if state.plan is None:
            self.notify("there is no plan here, and so no rule of it")
            return
        told = {} if state.begun is None else state.begun.rules
        for effect in effects(state):
            facts.add(effect.name, effect.words or effect.without)
            facts.add("", rule_text(told, effect.name))
            for line in filter(None, map(state.plan.line, effect.operators)):
                facts.add("", f"in {one_line(line.text)}")
            facts.gap()
        self.push_screen(Details(facts))

    def action_usage(self) -> None:
        self.push_screen(Details(usage_facts(self.source.state)))

    def action_copy(self) -> None:
        """Copies one of the things that belong to the line of the cursor."""
        copies = [(name, text) for name, text in self.view.copies() if text]
        if not copies:
            self.notify("there is nothing to copy here")
            return

        def chosen(at: int | None) -> None:
            if at is not None:
                self.copy_to_clipboard(copies[at][1])
                self.notify(f"copied: {copies[at][0]}")

        self.push_screen(
            ChoiceQuestion("copy", [f"{name}: {shorten(one_line(text), 60 - len(name))}" for name, text in copies]),
            chosen,
        )

    def action_explain(self) -> None:
        """What the words under the cursor mean, and what the keys do."""
        facts = Facts("What is what")
        begun = self.source.state.begun
        for word in self.view.words():
            facts.add(word, explained(word, {} if begun is None else begun.rules))
        facts.gap()
        for keys, meaning in (*KEYS, *((command.key, command.does) for command in commands_of(self))):
            facts.add(keys, meaning)
        self.push_screen(Details(facts))

    def action_notes(self) -> None:
        facts = Facts("Notes")
        ended = self.source.state.ended
        if ended is not None and ended.error is not None:
            facts.add("the run failed", ended.error)
        notes = [*self.source.notes, *self.faults]
        for note in notes:
            facts.add("note", note)
        if self.source.state.lost:
            facts.add("missed", f"{self.source.state.lost:,} events came faster than they could be read")
        if not notes:
            facts.add("note", "no event was skipped")
        self.push_screen(Details(facts))

    async def action_quit(self) -> None:
        self.action_leave()

    def action_leave(self) -> None:
        if not self._asks():
            self.exit(Leave.HERE)
        elif not isinstance(self.screen, LeaveQuestion):
            self.push_screen(LeaveQuestion(server=self.source.state.command == "serve"), self._leave)

    def _leave(self, at: int | None) -> None:
        if at is not None and at < len(Leave):
            self.exit(list(Leave)[at])

    def action_play(self) -> None:
        self._player.toggle()

    def action_step(self, by: int) -> None:
        self._player.step(by)

    def action_jump(self, by: int) -> None:
        self._player.seek(self._player.position + by * self._player.duration * _JUMP)

    def action_faster(self, by: int) -> None:
        self._player.faster(by)

    def action_seek(self, part: float) -> None:
        self._player.seek(part * self._player.duration)

    @property
    def _player(self) -> Player:
        assert self.source.player is not None
        return self.source.player

    def _place(self, size: Size) -> None:
        for view in self.query(View):
            view.set_space(size)


def watch_socket(path: Path, runs: OtherRuns) -> None:
    """Watches a run that was started elsewhere. Raises DashboardFault."""
    _shown(Dashboard(SocketSource(path), runs=runs))


def watch_process(
    process: Popen[bytes], path: Path, first: str, runs: OtherRuns, told_to_end: Callable[[], bool]
) -> Leave:
    """Watches a run that was started for this; returns what to do with it. Raises DashboardFault.

    A run that ends before it has begun, such as one whose models cannot be loaded, closes the dashboard, and so does
    one that ends since both were `told_to_end`.
    """
    source = SocketSource(path, lambda: process.poll() is None)

    def over() -> bool:
        return process.poll() is not None and (told_to_end() or (source.gone and source.state.loaded is None))

    app = Dashboard(
        source, asks=lambda: process.poll() is None and source.state.ended is None, over=over, first=first, runs=runs
    )
    return _shown(app) or Leave.HERE


def replay_trace(
    path: Path, *, speed: float = 1.0, paused: bool = False, end: bool = False, runs: OtherRuns | None = None
) -> None:
    """Plays a recorded run. Raises DashboardFault."""
    player = Player(path, speed=speed, paused=paused, end=end)
    try:
        _shown(Dashboard(ReplaySource(player), runs=runs))
    finally:
        player.close()


def _shown(app: Dashboard) -> Leave | None:
    """Shows a dashboard until it is closed. Raises DashboardFault, with the terminal as it was before."""
    try:
        with as_it_was():
            leave = app.run()
    except Exception as error:
        raise DashboardFault(in_words(error)) from error
    if app.fault is not None:
        raise DashboardFault(in_words(app.fault)) from app.fault
    return leave

"""An app that no key and no click ends, whatever fails in it while something lies over its first screen.

Textual has no public way to two things, and they are used here alone: `_handle_exception`, which all failures reach,
and `active_message_pump`, the widget that fails (`tests/tui/screens/test_modal.py` says what is lost without them).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar, TypeVar

from textual._context import active_message_pump
from textual.actions import ActionParseResult
from textual.app import App
from textual.await_complete import AwaitComplete
from textual.dom import DOMNode
from textual.events import Event, InputEvent
from textual.screen import Screen
from textual.worker import WorkerFailed, get_current_worker

Result = TypeVar("Result")


class ResilientApp(App[Result]):
    """`fault` is what ended it; `faults` are what it went on after, in words."""

    # What may be done while another screen lies over the first one.
    OVER_ALL: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.fault: Exception | None = None
        self.faults: list[str] = []
        # Textual would print a traceback, with values of the run in it.
        self.error_console.quiet = not os.environ.get("QPDSL_DEBUG")

    def _handle_exception(self, error: Exception) -> None:
        """Ends the app. What fails in what lies over the first screen, such as the palette, closes that alone."""
        failed = get_current_worker().node if isinstance(error, WorkerFailed) else active_message_pump.get(None)
        if self.is_running and isinstance(failed, DOMNode) and self._lies_over(failed):
            self.call_later(self._go_on, f"{type(failed).__name__} failed", error)
            return
        self.fault = self.fault or error
        super()._handle_exception(error)

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Carries out what a key stands for; one that was on its way as something came over the screen does nothing.

        One that fails closes what lies over the screen: Textual's own lists cannot take some keys before they are laid
        out.
        """
        if self._is_covered(action, default_namespace):
            return False
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except Exception as error:
            self._go_on(f"a key could not be obeyed ({action})", error)
            return True

    async def on_event(self, event: Event) -> None:
        """Takes an event. A key or a click that fails where it is passed on is treated as one that fails."""
        try:
            await super().on_event(event)
        except Exception as error:
            if not isinstance(event, InputEvent):
                raise
            self._go_on(f"{type(event).__name__} could not be passed on", error)

    def pop_screen(self) -> AwaitComplete:
        """Closes what lies over the screen; a second click or key that would close it finds nothing to do."""
        return super().pop_screen() if len(self.screen_stack) > 1 else AwaitComplete(_nothing())

    def _go_on(self, what: str, error: Exception) -> None:
        self.faults.append(f"{what}: {in_words(error)}")
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def _lies_over(self, node: DOMNode) -> bool:
        """Whether a widget is, or was, part of something else than the first screen."""
        owner = next((above for above in node.ancestors_with_self if isinstance(above, Screen)), None)
        return owner is not None and owner is not self.screen_stack[0]

    def _is_covered(self, action: str | ActionParseResult, namespace: DOMNode | None) -> bool:
        """Whether what an action belongs to lies under another screen."""
        if len(self.screen_stack) == 1:
            return False
        if namespace is None or namespace is self:
            name = action.partition("(")[0] if isinstance(action, str) else action[1]
            return name.removeprefix("app.") not in self.OVER_ALL
        return self.screen not in namespace.ancestors_with_self


async def _nothing() -> None:
    pass


def in_words(error: Exception) -> str:
    """An exception in one line; that of a worker is wrapped in one that says nothing."""
    error = error.error if isinstance(error, WorkerFailed) and isinstance(error.error, Exception) else error
    return " ".join(f"{type(error).__name__}: {error}".split())

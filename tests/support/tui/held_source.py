"""A source of events without a run."""

from __future__ import annotations

from qpdsl.tui.state.event_source import Player
from qpdsl.tui.state.run_state import RunState


class HeldSource:
    """A run whose events come when the test says so."""

    notes: tuple[str, ...] = ()
    elapsed = 1.0

    def __init__(self) -> None:
        self.state = RunState()
        self.player: Player | None = None

    @property
    def phase(self) -> str:
        return self.state.phase

    async def follow(self) -> None:
        """Nothing comes by itself."""

    def tick(self, seconds: float) -> None:
        """Time does not matter."""

"""A policy that costs next to nothing: its arms, looked up by what a step shows.

Contexts are put into cells. A cell has an arm, the least expected one at the first context that fell into it. The
policy itself chooses and learns on *asked* steps alone: the first ones, then for each arm after gaps that double. Where
steps cost something else than expected, twice in succession, the gaps close again. LLM-QP has it as a small routing
kernel that telemetry feeds (section 5). That a policy which is seldom asked loses little is known of rarely switching
ones (Abbasi-Yadkori, Pál and Szepesvári, 2011, section 5.1).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qpdsl.executor.routing.drift import Restarts
from qpdsl.executor.routing.policy import Context, Floats, finite

# A step is a surprise if it is off by so many times what is usual of its arm, and by so much of what was expected. The
# newest step makes up so much of what is usual.
_UNUSUAL, _OFF, _NEWEST = 4.0, 0.1, 0.1
# So many steps are asked in any case, and this is the longest gap.
_FIRST, _MOST = 16, 64
# A cell is so much of each number: losses are linear in these. More cells than so many are begun anew.
_BINS, _CELLS = 128, 4096


class _Cell:
    """The arm for the steps of a cell, and between what losses it is no surprise; `round` says when that was found."""

    __slots__ = ("arm", "context", "high", "low", "round")

    def __init__(self, context: Context) -> None:
        self.context: Floats = np.array(context, dtype=np.float64)
        self.round, self.arm, self.low, self.high = -1, 0, 0.0, 0.0


class RouteTable:
    """A `Policy`: the arms of another one, by cells. A context may be a sequence of numbers.

    `asked` counts the steps that the policy was asked about.
    """

    def __init__(self, policy: Restarts) -> None:
        self.policy = policy
        self.arms, self.features = policy.arms, policy.features
        # Where the policy was asked, what the step shows, until it has learned what that cost.
        self._asks: Floats | None = None
        self._surprises = 0
        self._begin()

    def choose(self, context: Context) -> int:
        """The arm for a step that shows this."""
        cell = self._cells.get(tuple([int(part * _BINS) for part in context]))
        if cell is None or cell.round != self._round:
            cell = self._found(context)
        self._cell, arm = cell, cell.arm
        if self.asked >= _FIRST and (left := self._left[arm]):
            self._left[arm] = left - 1
            return arm
        self._gaps[arm] = self._left[arm] = min(_MOST, 2 * self._gaps[arm] or 1)
        asks = self._asks = np.array(context, dtype=np.float64)
        self.asked += 1
        return self.policy.choose(asks)

    def learn(self, context: Context, arm: int, loss: float) -> None:
        """What the step cost that `choose` gave this arm. ValueError for a loss that is not finite, where it asked."""
        if self._asks is None:
            if self._cell.low <= loss <= self._cell.high:
                self._surprises = 0
            else:
                self._surprise()
            return
        asks, self._asks = self._asks, None
        expected = self.policy.predict(asks, arm)
        off, usual = abs(finite(loss) - expected), self._usual[arm]
        self.policy.learn(asks, arm, loss)
        if off > _UNUSUAL * usual + _OFF * abs(expected):
            self._surprise()
        self._usual[arm] = usual + _NEWEST * (off - usual)
        self._round += 1

    def state(self) -> dict[str, Any]:
        """That of the policy."""
        return self.policy.state()

    def restore(self, state: dict[str, Any], keep: float = 1.0) -> None:
        """As `Policy.restore`; the gaps begin anew."""
        self.policy.restore(state, keep)
        self._begin()

    def reset(self) -> None:
        self.policy.reset()
        self._begin()

    def _found(self, context: Context) -> _Cell:
        """The cell of a step, by what is known now."""
        if len(self._cells) >= _CELLS:
            self._cells.clear()
        cell = self._cells.setdefault(tuple([int(part * _BINS) for part in context]), _Cell(context))
        losses = self.policy.theta @ cell.context
        cell.round, cell.arm = self._round, int(losses.argmin())
        expected = float(losses[cell.arm])
        room = _UNUSUAL * self._usual[cell.arm] + _OFF * abs(expected)
        cell.low, cell.high = expected - room, expected + room
        return cell

    def _surprise(self) -> None:
        """Closes the gaps, where the step before was one too."""
        self._surprises += 1
        if self._surprises == 2:
            self._close()

    def _begin(self) -> None:
        self.asked = self._round = 0
        self._asks = None
        self._cells: dict[tuple[int, ...], _Cell] = {}
        self._usual = [0.0] * self.arms
        self._close()

    def _close(self) -> None:
        """For each arm its gap and the steps left of it, and the surprises in succession."""
        self._gaps, self._left = [0] * self.arms, [0] * self.arms
        self._surprises = 0

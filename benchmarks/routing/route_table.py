"""A policy that costs next to nothing: its arms by one number, looked up in a table.

Where one number K varies from step to step and the rest of the context hardly does, the arms of a linear policy are a
few ranges of K. The table holds them; a look-up is a bisection. The policy itself chooses and learns on *asked* steps
alone: the `first` ones, then for each arm after gaps that double, up to `most` looked-up steps. A step that costs
something else than expected closes the gaps again. LLM-QP has it as a small routing kernel that telemetry feeds
(section 5). That a policy which is seldom asked loses little is known of rarely switching ones (Abbasi-Yadkori, Pál and
Szepesvári, 2011, section 5.1).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.routing.drift import Restarts, SlidingWindow
from qpdsl.executor.routing.linear import LinUCB, Thompson
from qpdsl.executor.routing.policy import Floats

# A step is a surprise if it is off by so many times what is usual of its arm, and by so much of what was expected. The
# newest step makes up so much of what is usual.
_UNUSUAL, _OFF, _NEWEST = 4.0, 0.1, 0.1


class RouteTable:
    """Arms of `policy` by a number; `context` makes the policy's context of it.

    `grid`: ascending numbers; half way between two neighbours the arm may change. `first`: steps that are asked in
    any case; `most`: the longest gap. `learn` follows every `choose`, and does nothing for a step that was looked up.
    """

    def __init__(
        self,
        policy: LinUCB | Thompson | SlidingWindow | Restarts,
        context: Callable[[float], Floats],
        grid: Sequence[float],
        *,
        first: int = 16,
        most: int = 64,
    ) -> None:
        if len(grid) < 2 or list(grid) != sorted(grid) or most < 1 or first < 0:
            raise ValueError("a table needs a grid of at least two ascending numbers, and gaps of at least one step")
        self.policy = policy
        self.asked = 0
        """Steps that the policy was asked about."""
        self._of, self._first, self._most = context, first, most
        self._contexts = np.array([context(number) for number in grid])
        self._middles = [(low + high) / 2 for low, high in pairwise(grid)]
        self._context: Floats | None = None
        self._usual: list[float] = []
        self._close()
        self._compile()

    def choose(self, number: float) -> int:
        """The arm for a step with this number."""
        arm = self._arms[bisect_right(self._edges, number)]
        left = self._left[arm]
        if left and self.asked >= self._first:
            self._left[arm] = left - 1
            return arm
        self._gaps[arm] = gap = min(self._most, 2 * self._gaps[arm] or 1)
        self._left[arm] = gap
        self._context = self._of(number)
        self.asked += 1
        return self.policy.choose(self._context)

    def learn(self, arm: int, loss: float) -> None:
        """What the step cost that `choose` gave this arm."""
        if self._context is None:
            return
        expected = self.policy.predict(self._context, arm)
        off = abs(loss - expected)
        self.policy.learn(self._context, arm, loss)
        self._context = None
        usual = self._usual[arm]
        if off > _UNUSUAL * usual + _OFF * abs(expected):
            self._gaps, self._left = [0] * self.policy.arms, [0] * self.policy.arms
        self._usual[arm] = usual + _NEWEST * (off - usual)
        self._compile()

    def state(self) -> dict[str, Any]:
        """That of the policy."""
        return self.policy.state()

    def restore(self, state: dict[str, Any], keep: float = 1.0) -> None:
        """As `Policy.restore`; the gaps begin anew."""
        self.policy.restore(state, keep)
        self.asked, self._context = 0, None
        self._close()
        self._compile()

    def _close(self) -> None:
        """Begins anew: for each arm its gap, the steps left of it, and by how much its losses are usually off."""
        arms = self.policy.arms
        self._gaps, self._left, self._usual = [0] * arms, [0] * arms, [0.0] * arms

    def _compile(self) -> None:
        """The least expected arm at each number of the grid, as ranges."""
        best = (self._contexts @ self.policy.theta.T).argmin(1)
        changes = (best[1:] != best[:-1]).nonzero()[0]
        self._edges = [self._middles[index] for index in changes.tolist()]
        self._arms: list[int] = [*best[changes].tolist(), int(best[-1])]

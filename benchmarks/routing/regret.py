"""What a policy's choices came to, from the losses of all arms (LLM-QP, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpdsl.executor.routing.policy import Floats

Arms = NDArray[np.int64]


@dataclass(frozen=True)
class Regret:
    """Of T steps. Losses are means over the steps, regrets are sums, both in the unit of the losses.

    `shares` [A]: how often each arm was taken. `loss`: of what was taken, with `charge`, what the policy itself cost a
    step. `fixed` [A]: the loss of always the same arm. `oracle`: of the best arm of every step, in hindsight.
    `static`: over the best fixed arm; below 0 where no fixed arm is as good. `dynamic`: over the oracle.
    `variation`: V_T, see `variation`.
    """

    steps: int
    shares: tuple[float, ...]
    loss: float
    charge: float
    fixed: tuple[float, ...]
    oracle: float
    static: float
    dynamic: float
    variation: float

    @property
    def best_fixed(self) -> int:
        """The arm that would have been the best one to stay with."""
        return self.fixed.index(min(self.fixed))

    @property
    def over_oracle(self) -> float:
        """How many times the oracle's loss was paid."""
        return self.loss / self.oracle if self.oracle else 1.0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "best_fixed": self.best_fixed, "over_oracle": self.over_oracle}


def regret(losses: Floats, taken: Sequence[int] | Arms, *, charge: float = 0.0, smooth: int = 1) -> Regret:
    """What the arms `taken` [T] came to, where `losses` [T, A] are those of all arms, each finite.

    `charge`: what the policy itself cost a step, in the unit of the losses. `smooth`: see `variation`. ValueError for
    shapes that do not fit.
    """
    arms = np.asarray(taken, dtype=np.int64)
    if losses.ndim != 2 or arms.shape != losses.shape[:1] or not len(arms):
        raise ValueError(f"losses of the shape {losses.shape} do not fit {arms.shape[0]} choices")
    if not np.isfinite(losses).all() or arms.min() < 0 or arms.max() >= losses.shape[1]:
        raise ValueError("losses of all arms must be known, and the arms that were taken be among them")
    steps, count = losses.shape
    paid = float(losses[np.arange(steps), arms].mean()) + charge
    fixed = losses.mean(0)
    oracle = float(losses.min(1).mean())
    return Regret(
        steps=steps,
        shares=tuple((np.bincount(arms, minlength=count) / steps).tolist()),
        loss=paid,
        charge=charge,
        fixed=tuple(fixed.tolist()),
        oracle=oracle,
        static=steps * (paid - float(fixed.min())),
        dynamic=steps * (paid - oracle),
        variation=variation(losses, smooth),
    )


def variation(losses: Floats, smooth: int = 1) -> float:
    """V_T = Σ over t of the largest |ℓ_t(a) − ℓ_{t−1}(a)| of an arm, where ℓ are expected losses [T, A].

    Measured losses are not expected ones: their noise adds up. `smooth` steps, one block after another, are averaged
    first. V_T counts what the context explains as well as drift, as LLM-QP defines it.
    """
    if smooth > 1:
        blocks = np.array_split(losses, max(1, len(losses) // smooth))
        losses = np.stack([block.mean(0) for block in blocks])
    return float(np.abs(np.diff(losses, axis=0)).max(1).sum()) if len(losses) > 1 else 0.0


def cumulative(losses: Floats, taken: Sequence[int] | Arms, charge: float = 0.0) -> Floats:
    """The dynamic regret up to each step [T]."""
    arms = np.asarray(taken, dtype=np.int64)
    return np.cumsum(losses[np.arange(len(arms)), arms] + charge - losses.min(1))

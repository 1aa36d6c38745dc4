"""What a policy is, and the one that never learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
"""float64; a context is [d] with a length of at most 1, losses are [A]."""
Context = Sequence[float] | Floats
"""A context, as numbers too: a policy that needs no array makes none."""


class Policy(Protocol):
    """Chooses one of `arms` arms for each step, and learns from what the step cost. Losses are to be small.

    For each step `choose`, then at most one `learn`. A context is float64 [features].
    """

    arms: int
    features: int

    def choose(self, context: Context) -> int:
        """The arm for a step in this context."""
        ...

    def learn(self, context: Context, arm: int, loss: float) -> None:
        """What the arm that was taken cost. ValueError for a loss that is not finite; nothing is learned then."""
        ...

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON holds it: numbers, strings, lists and dictionaries."""
        ...

    def restore(self, state: dict[str, Any], keep: float = 1.0) -> None:
        """Goes on from a `state()` of a policy that was made alike.

        `keep` in 0..1: the share of its evidence that counts. With 1 the choices are those that the other policy would
        have made. ValueError where the state is not one of such a policy; then nothing has changed.
        """
        ...

    def reset(self) -> None:
        """Forgets all that was learned."""
        ...


def finite(loss: float) -> float:
    """The loss, or ValueError."""
    if -np.inf < loss < np.inf:
        return loss
    raise ValueError(f"a loss must be finite, not {loss}")


def checked(state: dict[str, Any], kind: str, arms: int, features: int, keep: float) -> None:
    """ValueError unless `state` is one of a policy of this kind and size, and `keep` a share."""
    if not 0 <= keep <= 1:
        raise ValueError(f"keep must be in 0..1, not {keep}")
    wanted = {"kind": kind, "arms": arms, "features": features}
    found = {name: state.get(name) for name in wanted} if isinstance(state, dict) else state
    if found != wanted:
        raise ValueError(f"the state is that of another policy: {found}, not {wanted}")


def numbers(state: dict[str, Any], name: str, *shape: int) -> Floats:
    """An array of finite numbers of a state, or ValueError."""
    try:
        array = np.array(state[name], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the state has no numbers named {name}") from error
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"{name} of the state are not finite numbers of the shape {shape}")
    return array


class Fixed:
    """Always takes the first arm, and learns nothing."""

    def __init__(self, arms: int, features: int) -> None:
        self.arms, self.features = arms, features

    def choose(self, context: Context) -> int:
        return 0

    def learn(self, context: Context, arm: int, loss: float) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {"kind": "fixed", "arms": self.arms, "features": self.features}

    def restore(self, state: dict[str, Any], keep: float = 1.0) -> None:
        checked(state, "fixed", self.arms, self.features, keep)

    def reset(self) -> None:
        pass

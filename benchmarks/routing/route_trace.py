"""A recorded trace: the contexts of steps, the losses of all arms, and the arm that was taken; and replay on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.routing.regret import Arms
from qpdsl.executor.routing.policy import Floats, Policy

_FORMAT = "qpdsl routes 1"


@dataclass(frozen=True, eq=False)
class RouteTrace:
    """T steps. `arms`, `features`: names; `contexts` float64 [T, d]; `losses` float64 [T, A], NaN where an arm's loss
    is not known; `taken` int64 [T]."""

    arms: tuple[str, ...]
    features: tuple[str, ...]
    contexts: Floats
    losses: Floats
    taken: Arms

    def __post_init__(self) -> None:
        steps = len(self.taken)
        wanted = (steps, len(self.features)), (steps, len(self.arms))
        if (self.contexts.shape, self.losses.shape) != wanted:
            raise ValueError(f"contexts {self.contexts.shape} and losses {self.losses.shape} are not {wanted}")

    @property
    def complete(self) -> bool:
        """Whether the losses of all arms are known: only then can a policy be replayed."""
        return bool(np.isfinite(self.losses).all())

    def save(self, path: Path) -> None:
        """Writes JSON lines: one with the names, then one for each step."""
        with path.open("w", encoding="utf-8") as file:
            file.write(header(self.arms, self.features))
            for context, losses, arm in zip(self.contexts, self.losses, self.taken, strict=True):
                file.write(step_line(context, losses, int(arm)))

    @classmethod
    def load(cls, path: Path) -> RouteTrace:
        """ValueError, with the line, where the file is not a trace. A torn last line is left out."""
        lines = path.read_text(encoding="utf-8").split("\n")
        whole = lines[:-1]
        try:
            head = json.loads(whole[0])
            arms, features = tuple(head["arms"]), tuple(head["features"])
            known = head["format"] == _FORMAT
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}:1: this is not the head of a trace of routes") from error
        if not known:
            raise ValueError(f"{path}:1: this trace has another format than {_FORMAT}")
        contexts, losses, taken = [], [], []
        for number, line in enumerate(whole[1:], 2):
            try:
                step = json.loads(line)
                context = np.array(step["context"], dtype=np.float64)
                paid = np.array([np.nan if loss is None else loss for loss in step["losses"]], dtype=np.float64)
                arm = int(step["arm"])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number}: this is not a step") from error
            if context.shape != (len(features),) or paid.shape != (len(arms),) or not 0 <= arm < len(arms):
                raise ValueError(f"{path}:{number}: this step does not fit the arms and features of line 1")
            contexts.append(context)
            losses.append(paid)
            taken.append(arm)
        return cls(
            arms,
            features,
            np.array(contexts).reshape(-1, len(features)),
            np.array(losses).reshape(-1, len(arms)),
            np.array(taken, dtype=np.int64),
        )


def header(arms: Sequence[str], features: Sequence[str]) -> str:
    """The first line of a trace."""
    return json.dumps({"format": _FORMAT, "arms": list(arms), "features": list(features)}) + "\n"


def step_line(context: Floats, losses: Floats, arm: int) -> str:
    """The line of a step; losses that are not known are NaN."""
    known = [None if np.isnan(loss) else float(loss) for loss in losses]
    return json.dumps({"context": [float(value) for value in context], "losses": known, "arm": arm}) + "\n"


def replay(policy: Policy, contexts: Floats, losses: Floats) -> Arms:
    """The arms [T] that a policy takes on `contexts` [T, d], told the losses [T, A] of what it takes alone."""
    taken = np.empty(len(contexts), dtype=np.int64)
    for step, context in enumerate(contexts):
        arm = policy.choose(context)
        policy.learn(context, arm, float(losses[step, arm]))
        taken[step] = arm
    return taken

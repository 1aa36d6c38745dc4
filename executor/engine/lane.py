"""One model in the engine, with what its sequences run on and when its turn comes."""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.executor.engine.backend import Backend
from qpdsl.executor.engine.model import PagedModel
from qpdsl.executor.engine.scheduler import Scheduler

# After so many steps of others a model goes before one whose batch would be full.
_PATIENCE = 8


@dataclass(slots=True)
class Lane:
    """One model in the engine, and what its sequences run on."""

    name: str
    model: PagedModel
    backend: Backend
    scheduler: Scheduler
    # Steps of other models since its last one, and the most sequences that were ready lately.
    passed: int = 0
    peak: float = 1.0

    def urgency(self) -> float:
        """How full its next batch would be against the fullest lately, and how long it has waited.

        A model that waits for another's results gets a fuller batch by letting the other go on.
        """
        return self.scheduler.ready / self.peak + self.passed / _PATIENCE

"""The rows of the input: the question of each, its status and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf

Status = OneOf["waiting", "running", "done", "right", "wrong", "failed"]
# In the order in which somebody would look at them.
STATUSES: tuple[Status, ...] = ("failed", "running", "wrong", "right", "done", "waiting")


@dataclass(slots=True)
class RowState:
    """One row. `number` counts from 1 in the order of the input; times are those of the run's clock."""

    id: str
    number: int
    asked: str = ""
    reference: str | None = None
    started: float | None = None
    ended: float | None = None
    answer: str | None = None
    score: float | None = None
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    seconds: float | None = None
    correct: bool | None = None
    greedy: str | None = None
    greedy_correct: bool | None = None
    error: str | None = None
    doing: str | None = None

    @property
    def status(self) -> Status:
        if self.error is not None:
            return "failed"
        if self.ended is not None:
            return "done" if self.correct is None else "right" if self.correct else "wrong"
        return "waiting" if self.started is None else "running"

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.sampled_tokens

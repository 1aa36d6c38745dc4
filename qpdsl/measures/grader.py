"""What says whether an answer is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from qpdsl.inputs.input_row import InputRow


@dataclass(frozen=True, slots=True)
class Grade:
    """What a grader says of one answer. `correct` is None where it cannot say; `note` says why, or what was seen.

    `points` is a share in [0, 1], where there are parts of an answer that can be right: 1.0 or 0.0 for most graders.
    """

    correct: bool | None
    points: float | None = None
    note: str | None = None


class GraderError(Exception):
    """A grader that could not grade one answer; the message names the grader and says why, in one line."""


class Grader(Protocol):
    """Says of the answer to a row whether it is right. The same answer gets the same grade in every run.

    `name` and `version` tell it from others in the record of a run. It is asked in the event loop of the run, so work
    that takes long is done in another thread or process.

    What `grade` raises fails the row and no other; the best is a GraderError. Only a UsageError, ModelError or
    EngineError ends the run, as the next row would have it too.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def applies(self, row: InputRow) -> bool:
        """Whether the row has what an answer is held against."""

    async def grade(self, answer: Any, row: InputRow) -> Grade:
        """The grade of an answer, which is None where the program gave none."""

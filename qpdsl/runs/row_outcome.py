"""The outcome of one row of the input: its record in the output, and whether its answer is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from qpdsl.errors import UsageError
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.requests.errors import EngineError
from qpdsl.planner.cost.run_figures import THOUGHT_TOKENS, UNFINISHED, thought_json
from qpdsl.planner.values.value import dumps, plain
from qpdsl.runs.graders.grader import Grade, GraderError, json_in, right_answers
from qpdsl.runs.record_file import first_fields
from qpdsl.runs.usage import kept_counts

if TYPE_CHECKING:
    from qpdsl.executor.runtime.instance.candidates import Row
    from qpdsl.executor.runtime.last_choice import FinalCandidate
    from qpdsl.executor.runtime.run import InstanceResult
    from qpdsl.runs.data.input_row import InputRow
    from qpdsl.runs.graders.grader import Grader

# Bytes; no row is longer.
_LONGEST_LINE = 64 << 20
# The keys that every record of the output begins with.
_FIRST_KEYS = ("id", "answer", "score", "tokens_in", "tokens_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`correct` and `greedy_correct` are None where the row has no reference, `greedy` also where greedy was not run.

    `points`: see `Grade`. `support`, `engine_seconds`: see `InstanceResult`. `cost`: what servers take for it, by the
    price table. Greedy's tokens are not in `tokens_in` and `tokens_out`; `saved_tokens` of `tokens_out` were drawn
    before, for another program or width, and shared. `filtered`: see `kept_counts`. `rows` is None unless the rows
    were asked for, and so are `candidates`, each with whether it is right. `error` says why the program broke off,
    `unanswered` why it came to its end without an answer, `grader_error` why an answer could not be graded. `samples`
    are all that were drawn for it (`RowSamples.encoded`), where they are recorded and not saved yet.
    """

    id: str
    answer: Any
    score: float | None
    tokens_in: int
    tokens_out: int
    near_ties: int
    seconds: float
    correct: bool | None = None
    points: float | None = None
    greedy: Any = None
    greedy_correct: bool | None = None
    error: str | None = None
    unscored: int = 0
    filtered: Mapping[str, int] = field(default_factory=dict)
    rows: list[dict[str, Any]] | None = None
    support: float | None = None
    cost: float = 0.0
    engine_seconds: float = 0.0
    saved_tokens: int = 0
    candidates: list[dict[str, Any]] | None = None
    grader_error: str | None = None
    unanswered: str | None = None
    samples: bytes | None = field(default=None, compare=False, repr=False)

    @property
    def thought_tokens(self) -> int:
        """How many of `tokens_out` are thoughts."""
        return self.filtered.get(THOUGHT_TOKENS, 0)

    @property
    def in_part(self) -> float | None:
        """Its points, where it is right in part."""
        return self.points if self.points is not None and 0 < self.points < 1 else None

    @property
    def unfinished(self) -> bool:
        """Whether its answer is that of a row that a `repeat` or a `search` left before its end."""
        return bool(self.filtered.get(UNFINISHED))

    @property
    def failure(self) -> str | None:
        """Why the row failed; None where it did not. A graded row without an answer has not failed: it is wrong."""
        return self.error or self.grader_error or (self.unanswered if self.correct is None else None)

    @property
    def wrong_for_no_answer(self) -> bool:
        """Whether it is wrong as it has no answer; where nothing is graded it failed."""
        return self.unanswered is not None and self.failure is None

    @property
    def faulty(self) -> bool:
        """Whether it failed by a fault of qpdsl, so that another time it may not."""
        from qpdsl.executor.runtime.instance.internal_error import is_internal

        return self.error is not None and is_internal(self.error)

    def record(self, *, timing: bool) -> dict[str, Any]:
        """The output record; the keys' order is part of the format."""
        record: dict[str, Any] = {
            "id": self.id,
            "answer": plain(self.answer),
            "score": None if self.score is None else plain(self.score),
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            **thought_json(self.filtered),
        }
        if self.correct is not None:
            record["correct"] = self.correct
        if self.in_part is not None:
            record["points"] = self.in_part
        if self.greedy_correct is not None:
            record["greedy"] = plain(self.greedy)
            record["greedy_correct"] = self.greedy_correct
        if self.unscored:
            record["unscored"] = self.unscored
        if self.unfinished:
            record["unfinished"] = True
        if self.failure is not None:
            record["error"] = self.failure
        elif self.unanswered is not None:
            record["unanswered"] = self.unanswered
        if timing:
            record["seconds"] = round(self.seconds, 3)
        if self.rows is not None:
            record["rows"] = self.rows
        if self.candidates is not None:
            record["candidates"] = self.candidates
        return record

    def to_json(self) -> dict[str, Any]:
        """All of it, for the file of the run."""
        told = {name: value for name, value in asdict(self).items() if name != "samples"}
        return {**told, "answer": plain(self.answer), "greedy": plain(self.greedy)}


@dataclass(frozen=True, slots=True)
class FinishedRow:
    """What came of the row of a number. `replica` is the one that ran it, where that could matter, else None.

    `reused` is the id of the run that computed it, None for the run that goes on now. `run` is the
    place of its run among those that run together.
    """

    number: int
    outcome: Outcome
    replica: str | None = None
    reused: str | None = None
    run: int = 0


# What is called with rows that have ended, each row once; it returns when they are saved. Rows that end at about the
# same time come together, so that whoever saves them waits for the disk once.
SaveRows = Callable[[Sequence[FinishedRow]], None]


async def outcome(
    row: InputRow, result: InstanceResult, greedy: InstanceResult | None, grader: Grader, *, with_rows: bool
) -> Outcome:
    """The outcome of a row from what the program gave and, where it was run, greedy decoding, both graded."""
    grading = _Grading(grader, row)
    error = None if result.unanswered else result.error
    if greedy is not None and (greedy.timed_out or greedy.fault is not None):
        # It has no answer to compare with, which must not count as a wrong one.
        error, greedy = error or f"greedy decoding {greedy.error}", None
    grade = await grading.grade(result.value, failed=result.error is not None and not result.unanswered)
    greedy_grade = None if greedy is None else await grading.grade(greedy.value)
    # Of a program that left no row nothing is said of its samples either.
    chosen_from = result.candidates if result.rows else None
    candidates = None if chosen_from is None else await grading.candidates(plain_candidates(chosen_from))
    return Outcome(
        id=row.id,
        answer=result.value,
        score=result.score,
        tokens_in=result.prompt_tokens,
        tokens_out=result.sampled_tokens,
        near_ties=result.near_ties,
        unscored=result.unscored,
        filtered=kept_counts(result.counts),
        seconds=result.seconds,
        correct=None if grade is None else grade.correct,
        points=None if grade is None else grade.points,
        greedy=None if greedy is None else greedy.value,
        greedy_correct=None if greedy_grade is None else greedy_grade.correct,
        error=error,
        rows=plain_rows(result.rows) if with_rows else None,
        support=result.support,
        cost=result.counts.get("cost_millionths", 0) / 1e6,
        engine_seconds=result.engine_seconds,
        saved_tokens=result.counts.get("saved_tokens", 0),
        candidates=candidates,
        grader_error=grading.failure,
        unanswered=result.error if result.unanswered else None,
    )


class _Grading:
    """The grades of one row's answers. What a grader raises on is wrong, and `failure` says why it first raised.

    Of a record with a field `answer` that field is graded, where the right answer is no record.
    """

    def __init__(self, grader: Grader, row: InputRow) -> None:
        self.failure: str | None = None
        self._grader = grader
        self._row = row
        self._applies = grader.applies(row)

    async def grade(self, answer: Any, *, failed: bool = False) -> Grade | None:
        """None where the row has nothing to grade by.

        `failed`: the program failed, which is wrong whatever the grader says of it, unless it can say nothing.
        """
        if not self._applies:
            return None
        try:
            grade = await self._grader.grade(self._graded(answer), self._row)
        except (UsageError, ModelError, EngineError):
            raise
        except Exception as error:
            # A grader need not know what to do without an answer.
            if answer is not None:
                self.failure = self.failure or _words(self._grader, error)
            return Grade(False)
        if failed and grade.correct is not None:
            return Grade(False, None if grade.points is None else 0.0)
        return grade

    def _graded(self, answer: Any) -> Any:
        """What is graded of an answer: all of it, where a record is right or a user's own function looks at it."""
        records = any(isinstance(json_in(right), dict) for right in right_answers(self._row))
        whole = records or not isinstance(answer, dict) or self._grader.name.startswith("python:")
        return answer if whole else answer.get("answer", answer)

    async def candidates(self, candidates: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Candidates, each with whether its answer is right. Equal answers are graded once."""
        grades: dict[str, bool | None] = {}
        for candidate in candidates:
            key = dumps(candidate["answer"])
            if key not in grades:
                grade = await self.grade(candidate["answer"])
                grades[key] = None if grade is None else grade.correct
        return [{**candidate, "correct": grades[dumps(candidate["answer"])]} for candidate in candidates]


def _words(grader: Grader, error: Exception) -> str:
    """What a grader raised, in words that name it."""
    from qpdsl.executor.runtime.instance.user_code import raised

    return str(error) if isinstance(error, GraderError) else f"the grader `{grader.name}` failed: {raised(error)}"


def plain_candidates(candidates: Iterable[FinalCandidate]) -> list[dict[str, Any]]:
    return [
        {
            "answer": plain(candidate.answer),
            "score": candidate.score,
            "tokens": candidate.tokens,
            "text": candidate.text,
            "ballot": candidate.ballot,
        }
        for candidate in candidates
    ]


async def graded_anew(outcome: Outcome, row: InputRow, grader: Grader) -> Outcome:
    """A row's outcome with its answers graded by `grader`, whatever they were graded by before."""
    grading = _Grading(grader, row)
    compared = outcome.greedy is not None or outcome.greedy_correct is not None
    # What greedy decoding failed by is the row's error too.
    failed = outcome.error is not None and outcome.answer is None
    grade = await grading.grade(outcome.answer, failed=failed)
    greedy_grade = await grading.grade(outcome.greedy) if compared else None
    candidates = None if outcome.candidates is None else await grading.candidates(outcome.candidates)
    return replace(
        outcome,
        correct=None if grade is None else grade.correct,
        points=None if grade is None else grade.points,
        greedy_correct=None if greedy_grade is None else greedy_grade.correct,
        candidates=candidates,
        grader_error=grading.failure,
    )


def begins_results(file: BinaryIO) -> bool:
    """Whether an open file holds records of outcomes, as far as its first record tells."""
    return tuple(first_fields(file)[: len(_FIRST_KEYS)]) == _FIRST_KEYS


def plain_rows(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The columns of each row, in the order in which the program first makes them."""
    return [{name: plain(value) for name, value in row.columns.items()} for row in rows]

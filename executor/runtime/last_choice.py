"""The candidates of a program: the rows among which its last choice is made, and what each would have come to.

Metrics at every number of samples are made of them: what a vote, or the best by a verifier, would have given among the
first k (see `qpdsl/runs/answer_metrics.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.runtime.instance.candidates import Candidates, JsonValue, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Usage
from qpdsl.executor.runtime.operators.relational import return_value
from qpdsl.executor.runtime.operators.vote import all_answers_of
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp
from qpdsl.planner.values.library import TooLarge

Operate = Callable[[PhysicalOp, Candidates, Instance], Awaitable[Candidates]]
# What chooses among rows, and what only reads out what was chosen.
_CHOICES = (ops.Vote, ops.Keep, ops.Tournament)
_READ_OUT = (ops.Extract, ops.PythonExtract, ops.Let, ops.Return)


@dataclass(frozen=True, slots=True)
class FinalCandidate:
    """One row that came to the last choice.

    `answer` is what the program would have given back had there been no other, None where that is nothing; `score` its
    value in the program's score column; `tokens` how many it has; `text` what was generated since the last context.
    Where the choice is a `vote`, candidates with equal `ballot`s vote for the same answer, and one without has no vote.
    `row` is the row as it came there.
    """

    answer: JsonValue
    score: float | None
    tokens: int | None
    text: str
    ballot: int | None = None
    row: Row = field(default=Row(None, (), {}), compare=False, repr=False)


def last_choice(chain: Sequence[PhysicalOp]) -> int | None:
    """The place of the last choice in a program's chain.

    None where none is made, or where something is generated or scored after it: then what a candidate would have come
    to is not known. Nor are the candidates of a vote that ends the drawing of its samples.
    """
    deciding = {node.strategy.vote for node in chain if isinstance(node.strategy, GenerateStrategy)}
    for place in range(len(chain) - 1, -1, -1):
        if isinstance(chain[place].op, _CHOICES):
            unknown = isinstance(chain[place].op, ops.Tournament) or chain[place].id in deciding
            return None if unknown else place
        if not isinstance(chain[place].op, _READ_OUT):
            return None
    return None


async def candidates_of(
    chain: Sequence[PhysicalOp], rows: Candidates, instance: Instance, score_column: str | None, operate: Operate
) -> tuple[FinalCandidate, ...]:
    """The candidates, from the rows that come to a choice; `chain` begins with it. Nothing of this is counted."""
    made = [await _candidate(chain, row, instance, score_column, operate) for row in rows]
    choice = chain[0].op
    if isinstance(choice, ops.Vote):
        answers = await all_answers_of(choice, [row.columns.get(choice.column.id) for row in rows], instance)
        numbers: dict[Hashable, int] = {}
        ballots = [None if answer is None else numbers.setdefault(answer, len(numbers)) for answer in answers]
        made = [replace(one, ballot=ballot) for one, ballot in zip(made, ballots, strict=True)]
    return tuple(made)


async def _candidate(
    chain: Sequence[PhysicalOp], row: Row, instance: Instance, score_column: str | None, operate: Operate
) -> FinalCandidate:
    own = replace(instance, usage=Usage(), emptied=[], supports={})
    root = chain[-1].op
    assert isinstance(root, ops.Return)
    rows: Candidates = (row,)
    answer: JsonValue = None
    try:
        for node in chain:
            rows = await operate(node, rows, own)
        answer = return_value(root, rows, own)
    except (RowError, EngineError, TooLarge, OverflowError):
        # Alone it gives nothing.
        pass
    score, tokens = row.columns.get(score_column or ""), row.columns.get("tokens")
    return FinalCandidate(
        answer,
        score if isinstance(score, float) else None,
        tokens if isinstance(tokens, int) else None,
        row.generated.text,
        row=row,
    )

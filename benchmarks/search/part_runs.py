"""Runs over parts of some problems, kept one by one, so that what was stopped goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.search.planned import Run, run
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.runs.data.input_row import InputRow
from qpdsl.session.session import Session


@dataclass(frozen=True)
class PartRun:
    """What `name` came to on one part of the problems: `correct`, `tokens` drawn and `support` by problem.

    `read` is how many tokens verifiers read for all of them, a text whole for each score, as an API would bill it.
    Tokens are counted as if it had run alone.
    """

    name: str
    part: int
    correct: list[bool]
    tokens: list[int]
    support: list[float | None]
    read: int

    @property
    def right(self) -> float:
        return fmean(self.correct)

    @property
    def drawn(self) -> float:
        return fmean(self.tokens)


class PartRuns:
    """The runs that have ended, in a file of JSON lines under a head that says what is run."""

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self.path = path
        self.ended: dict[tuple[str, int], PartRun] = {}
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        # A line that was cut off when the run was killed is none.
        records = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        if records and records[0] == head:
            self.ended = {(record["name"], record["part"]): PartRun(**record) for record in records[1:]}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write([head, *map(asdict, self.ended.values())], "w")

    def get(self, name: str, part: int, plan: PhysicalPlan, rows: list[InputRow], session: Session) -> PartRun:
        """The run of a plan over the rows of a part, run now unless it was before."""
        if (name, part) not in self.ended:
            made = _measured(name, part, run(plan, rows, session=session))
            self.ended[name, part] = made
            self._write([asdict(made)], "a")
            print(f"  {name}, part {part}: {made.right:.1%} right, {made.drawn:,.0f} tokens drawn", flush=True)
        return self.ended[name, part]

    def _write(self, records: list[Mapping[str, Any]], mode: str) -> None:
        with self.path.open(mode, encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
            file.flush()
            os.fsync(file.fileno())


def _measured(name: str, part: int, done: Run) -> PartRun:
    for outcome in done.outcomes:
        if outcome.error is not None:
            raise RuntimeError(f"{name}: `{outcome.id}`: {outcome.error}")
    return PartRun(
        name,
        part,
        [outcome.correct is True for outcome in done.outcomes],
        [outcome.tokens_out for outcome in done.outcomes],
        [outcome.support for outcome in done.outcomes],
        done.read_by_verifiers,
    )

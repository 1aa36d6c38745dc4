"""The user's saved runs, as the dashboard sets them beside the run that it shows."""

from __future__ import annotations

from qpdsl.planner.values.value import shown
from qpdsl.runs.compare.side import read_run
from qpdsl.runs.store.run_folder import RunFolder
from qpdsl.runs.store.run_record import RowRecord
from qpdsl.tui.state.compare import OtherName, OtherRow, OtherRun, explained_lines


class ComparedRuns:
    """See `OtherRuns`."""

    def names(self) -> list[OtherName]:
        found = []
        for info in RunFolder().infos():
            record, totals = info.record, info.totals
            found.append(
                OtherName(
                    info.id,
                    record.program,
                    totals.done,
                    totals.correct,
                    totals.graded,
                    grader=record.grader,
                    input=record.input,
                    started=record.started,
                )
            )
        return found[::-1]

    def read(self, name: str) -> OtherRun:
        saved = read_run(RunFolder().find(name))
        record = saved.record
        facts = {"seed": str(record.seed), "rows": f"{len(saved.rows):,} of {record.rows:,}", "input": record.input}
        facts |= {"grader": record.grader}
        facts |= {f"model {name}": id for name, id in record.models.items()}
        facts |= {name: shown(value) for name, value in record.parameters.items()}
        rows = {row.outcome.id: _row(row) for row in saved.rows}
        return OtherRun(saved.info.id, rows, explained_lines(record.plan), facts)


def _row(row: RowRecord) -> OtherRow:
    outcome = row.outcome
    answer = "" if outcome.answer is None else shown(outcome.answer)
    candidates = outcome.candidates or ()
    text = next((str(one["text"]) for one in candidates if shown(one["answer"]) == answer), "")
    tokens = outcome.tokens_in + outcome.tokens_out
    return OtherRow(outcome.id, row.asked, answer or outcome.failure or "", outcome.correct, tokens, text)

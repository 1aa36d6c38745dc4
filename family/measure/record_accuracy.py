"""How often the generator extracts a record with all fields right, with and without a schema on its output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from family.measure.program_runs import pipeline, run_all, shipped
from family.measure.search_accuracy import share
from family.tasks.records import SCHEMAS, Note
from qpdsl.runs.row_outcome import Outcome

_PROGRAMS = {"person": "constrained_json", "order": "order", "meeting": "meeting"}
# What prints the share of each kind that is right under its schema.
RECORD_COMMANDS = {
    kind: f"qpdsl run constrained_json{'' if kind == 'person' else f' --program {kind}'} --input {kind}-100"
    for kind in SCHEMAS
}
_FREE = "chat user=prompt | generate llm temperature=0 max_tokens=256"


@dataclass(frozen=True)
class RecordAccuracy:
    """Shares of notes whose record has all fields right: under the schema, without it, and by kind under it."""

    notes: int
    constrained: float
    free: float
    by_kind: dict[str, float]


def record_accuracy(generator: str, notes: Sequence[Note]) -> RecordAccuracy:
    """Extract every note's record with the shipped programs, and without a schema; compare all fields."""
    models = {"llm": generator}
    by_kind: dict[str, list[bool]] = {}
    for kind in SCHEMAS:
        of_kind = [note for note in notes if note.kind == kind]
        program = shipped("constrained_json", models, _PROGRAMS[kind])
        outcomes = run_all(
            f"records, {kind}", program, [{"note": note.text} for note in of_kind], [note.json for note in of_kind]
        )
        by_kind[kind] = [outcome.answer == note.record for outcome, note in zip(outcomes, of_kind, strict=True)]
    free = run_all(
        "records, free",
        pipeline(_FREE, models),
        [{"prompt": note.prompt} for note in notes],
        [note.json for note in notes],
    )
    return RecordAccuracy(
        notes=len(notes),
        constrained=share([flag for flags in by_kind.values() for flag in flags]),
        free=share([_json_answer(outcome) == note.record for outcome, note in zip(free, notes, strict=True)]),
        by_kind={kind: share(flags) for kind, flags in by_kind.items()},
    )


def _json_answer(outcome: Outcome) -> object:
    try:
        return json.loads(str(outcome.answer))
    except ValueError:
        return None

"""The record of a benchmark that writes each case as it ends, so that a run which was stopped goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.common.machine import describe

Record = dict[str, Any]
_FACTS = ("processor", "cores", "python", "torch", "transformers")


class CaseFile:
    """Tables of rows, each with a key, in one JSON file beside a description of the machine."""

    def __init__(self, path: Path, empty: Record, *, fresh: bool, show_only: bool) -> None:
        """What the file has, or the `empty` record. Raises SystemExit where it has the figures of another machine.

        With `show_only` nothing is added to them, so they may be another's.
        """
        facts = describe()
        machine = {name: facts[name] for name in _FACTS}
        self.path = path
        self.record: Record = {"machine": machine, **empty}
        if path.is_file() and not fresh:
            self.record = json.loads(path.read_text(encoding="utf-8"))
            if self.record["machine"] != machine and not show_only:
                raise SystemExit(f"{path} has the figures of another machine: --fresh, or another --output")

    def find(self, table: str, key: Record) -> Record | None:
        """The row with this key; None where there is none."""
        return next((row for row in self.record[table] if holds(row, key)), None)

    def put(self, table: str, key: Record, figures: Record) -> None:
        """Writes a row in the place of the one with the same key."""
        self.drop(table, key)
        self.record[table].append({**key, **figures})

    def drop(self, table: str, key: Record) -> None:
        self.record[table] = [row for row in self.record[table] if not holds(row, key)]

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.record, indent=1) + "\n", encoding="utf-8")


def holds(row: Record, key: Record) -> bool:
    """Whether a row has all that the key has."""
    return all(row[name] == value for name, value in key.items())

"""What a reader gives: the records of a file, and what is wrong with those that could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import Literal as OneOf


@dataclass(frozen=True, slots=True)
class DataRecord:
    """One record. `number` is its place in the file, from 1: its line, or its rank where the format has no lines.

    `fields` are JSON values. A field without a value (a null of Parquet, an empty cell) is not there.
    """

    number: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordSet:
    """The records of a file in order, and `faults`: a place and what is wrong there.

    `kind` names the format in messages, `unit` what `number` counts. Where `is_text`, the format has texts alone, and a
    value has yet to be read out of each. `left_out` names fields that hold nothing that a program can use.
    """

    kind: str
    unit: OneOf["line", "row"]
    records: tuple[DataRecord, ...]
    faults: tuple[tuple[int, str], ...] = ()
    is_text: bool = False
    left_out: tuple[str, ...] = ()

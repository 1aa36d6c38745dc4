"""Which candidate a value was read from: columns of a row can come from rows that were made beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from qpdsl.executor.events.events import Aside, Path


class ValueSource(NamedTuple):
    """A row, and the column of it; None where the value was worked out of several."""

    aside: Aside
    path: Path
    column: str | None


class ValueSources:
    """The sources of values of one instance, by the row and the column that has them; of others the row is its own."""

    def __init__(self) -> None:
        self._sources: dict[ValueSource, ValueSource | None] = {}

    def add(self, target: ValueSource, source: ValueSource) -> None:
        self._sources[target] = source

    def set_here(self, aside: Aside, paths: Sequence[Path], column: str) -> None:
        """A column of rows has a value of their own from now on."""
        if self._sources:
            self._sources.update((ValueSource(aside, path, column), None) for path in paths)

    def of(self, value: ValueSource) -> ValueSource:
        """The row that a value was read from first."""
        seen = {value}
        while (source := self._source(value)) is not None and source not in seen:
            seen.add(source)
            value = source
        return value

    def _source(self, value: ValueSource) -> ValueSource | None:
        # A row has the columns of those it was made of.
        for length in range(len(value.path), -1, -1):
            row = value._replace(path=value.path[:length])
            if row in self._sources:
                return self._sources[row]
        return None

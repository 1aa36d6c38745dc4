"""Names and what their values are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from qpdsl.errors import UsageError, shorten, unknown
from qpdsl.inputs.mapping.field_source import Field, FieldSource
from qpdsl.inputs.mapping.source_text import field_source


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """A source for each name that does not simply take the field of its own name."""

    sources: Mapping[str, FieldSource] = field(default_factory=dict)

    @classmethod
    def parsed(cls, texts: Iterable[str]) -> FieldMapping:
        """The mapping that `NAME=SOURCE` strings write. Raises UsageError, also for two sources of one name."""
        sources: dict[str, FieldSource] = {}
        for text in texts:
            name, sign, source = text.partition("=")
            name = name.strip()
            if not sign or not name or not source.strip():
                raise UsageError(f"`--map` takes NAME=SOURCE, not `{shorten(text)}`", "as in `--map problem=question`")
            if name in sources:
                raise UsageError(f"`--map` gives `{name}` twice")
            sources[name] = field_source(name, source)
        return cls(sources)

    def over(self, other: FieldMapping) -> FieldMapping:
        """Both mappings; of a name in both, this one's source."""
        return FieldMapping({**other.sources, **self.sources})

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(name for source in self.sources.values() for name in source.reads)

    @property
    def taken_whole(self) -> frozenset[str]:
        """The fields that are a value of another name as they are, so that nobody needs them under their own."""
        whole = {name: source.name for name, source in self.sources.items() if isinstance(source, Field)}
        return frozenset(source for name, source in whole.items() if source != name and source not in self.sources)

    def check(self, known: Iterable[str]) -> None:
        """Raises UsageError where a source reads no field that the data has; `known` are those of all its records."""
        names = list(known)
        for name, source in self.sources.items():
            if source.reads and not any(field in names for field in source.reads):
                lead = f"`--map {name}=…`: the data has no field"
                raise UsageError(unknown(source.reads[0], names, lead))

    def apply(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a record with the values of the names in them; a name without a value is no field.

        Raises ValueError.
        """
        values = {name: source.value(fields) for name, source in self.sources.items()}
        return {name: value for name, value in {**fields, **values}.items() if value is not None}

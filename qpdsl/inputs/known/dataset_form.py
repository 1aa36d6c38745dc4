"""What a published data set is made of."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from qpdsl.inputs.mapping.field_source import FieldSource, FirstOf, is_there


@dataclass(frozen=True, slots=True)
class DatasetForm:
    """A published form. `problem` goes to the parameter that takes the problem, `sources` to names.

    `grader` is the name of the grader that its papers' measure comes to. `fields` are those that it is published with:
    a record with all of one of these sets has this form, if `told_by` says so too. `origin` says where it is published.
    """

    name: str
    title: str
    problem: FieldSource
    sources: Mapping[str, FieldSource]
    grader: str
    fields: tuple[frozenset[str], ...]
    origin: str
    told_by: Callable[[Mapping[str, Any]], bool] = field(default=lambda record: True)

    def source(self, name: str | None, fields: Container[str]) -> FieldSource | None:
        """The source of a name in data with these fields, None where it has nothing for it; the problem's without."""
        source = self.problem if name is None else self.sources[name]
        if isinstance(source, FirstOf):
            source = source.among(fields)
        return source if is_there(source, fields) else None

    def is_form_of(self, record: Mapping[str, Any]) -> bool:
        """Whether the fields of a record are those of this form."""
        return any(names <= record.keys() for names in self.fields) and self.told_by(record)

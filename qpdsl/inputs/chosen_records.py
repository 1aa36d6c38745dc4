"""The records that are taken of some data, with their fields under the names that they were given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qpdsl.errors import DataError, UsageError, shorten
from qpdsl.inputs.data_source import LoadedData
from qpdsl.inputs.findings import MOST_LISTED, Findings
from qpdsl.inputs.formats.data_record import DataRecord
from qpdsl.inputs.known.dataset_form import DatasetForm
from qpdsl.inputs.known.known_sets import form_called
from qpdsl.inputs.mapping.field_mapping import FieldMapping
from qpdsl.inputs.mapping.field_source import Field
from qpdsl.inputs.read_options import ReadOptions
from qpdsl.inputs.row_binding import number_of
from qpdsl.inputs.row_condition import RowCondition
from qpdsl.inputs.selection import selected
from qpdsl.planner.values.value import NUMBER

# Gives the name for the problem of a known data set, from the names that have a source of the user's; None for none.
ProblemName = Callable[[set[str]], str | None]


class ChosenRecords:
    """The records of `data` that `options` take, mapped and in order.

    `records` are those without a fault; the faults of the others that are taken are in `findings`. Of a table as text,
    `numbers` are the fields whose texts all spell numbers. Raises DataError where no record fulfils the condition, and
    UsageError for options that the data does not fit.
    """

    def __init__(self, data: LoadedData, options: ReadOptions, problem: ProblemName) -> None:
        self._options = options
        self._data = data
        self._condition = None if options.where is None else RowCondition(options.where)
        self.form = None if options.dataset is None else form_called(options.dataset)
        self.mapping = self._all_names(problem)
        self.findings = Findings(data.name, data.records.unit)
        self.numbers = _number_columns(data.records.records) if data.records.is_text else frozenset[str]()
        for number, fault in data.records.faults:
            self.findings.add(number, fault)
        self.records = self._taken(*self._mapped())

    @property
    def read(self) -> set[str]:
        """The fields that something reads besides the program."""
        if self.form is not None:
            return {*self._data.fields}
        asked = [] if self._condition is None else self._condition.fields
        return {*self.mapping.reads, *asked, *([self._options.spread] if self._options.spread else [])}

    def typed(self, record: DataRecord) -> dict[str, Any]:
        """The fields of a record with the numbers that texts stand for."""
        return {
            name: number_of(value.strip()) if name in self.numbers and isinstance(value, str) else value
            for name, value in record.fields.items()
        }

    def _all_names(self, problem: ProblemName) -> FieldMapping:
        own = FieldMapping.parsed(self._options.maps)
        if self._options.id is not None:
            own = FieldMapping({"id": Field(self._options.id)}).over(own)
        if self._data.records.records:
            own.check(self._data.fields)
        return own if self.form is None else own.over(self._form_names(self.form, problem({*own.sources})))

    def _form_names(self, form: DatasetForm, target: str | None) -> FieldMapping:
        """The names that a form gives in this data, with its problem under the name `target`."""
        fields = self._data.fields
        found = {name: form.source(name, fields) for name in form.sources}
        there = {name: source for name, source in found.items() if source is not None}
        if target is None:
            return FieldMapping(there)
        source = form.source(None, fields)
        if source is None and fields:
            shown = ", ".join(f"`{shorten(field, 24)}`" for field in fields[:MOST_LISTED])
            raise UsageError(
                f"`--dataset {form.name}`: the data has no field {form.problem.words}; its fields are {shown}",
                f"`--map {target}=FIELD` says which field holds the problem",
            )
        return FieldMapping({target: source or form.problem, **there})

    def _mapped(self) -> tuple[list[DataRecord], dict[int, str]]:
        """All records under their new names, and what is wrong with those that have none, by their numbers."""
        faults: dict[int, str] = {}
        records: list[DataRecord] = []
        for record in self._data.records.records:
            fields: Mapping[str, Any] = record.fields
            try:
                fields = self.mapping.apply(fields)
            except ValueError as error:
                faults[record.number] = str(error)
            records.append(replace(record, fields=fields))
        return records, faults

    def _taken(self, records: list[DataRecord], faults: Mapping[int, str]) -> list[DataRecord]:
        typed = [self.typed(record) for record in records]
        if self._condition is not None and records:
            places = self._fulfilling(self._condition, typed)
            records, typed = [records[place] for place in places], [typed[place] for place in places]
        spread = self._options.spread
        if spread is not None and records and not any(spread in fields for fields in typed):
            raise UsageError(f"`--spread {spread}`: no row has a field of this name")
        taken = [records[place] for place in selected(typed, self._options)]
        if records and not taken:
            raise UsageError(f"`--skip {self._options.skip}` leaves none of the {len(records):,} rows")
        for record in taken:
            if record.number in faults:
                self.findings.add(record.number, faults[record.number])
        return [record for record in taken if record.number not in faults]

    def _fulfilling(self, condition: RowCondition, typed: Sequence[Mapping[str, Any]]) -> list[int]:
        places = [place for place, fulfilled in enumerate(condition.chosen(typed)) if fulfilled]
        if not places:
            message = f"{self._data.name}: no row fulfils `--where {shorten(self._options.where or '')}`"
            raise DataError(message, condition.explain_none(typed))
        return places


def _number_columns(records: Sequence[DataRecord]) -> frozenset[str]:
    """The fields whose texts all spell numbers."""
    others = {name for record in records for name, text in record.fields.items() if not NUMBER.fullmatch(text.strip())}
    return frozenset(name for record in records for name in record.fields if name not in others)

"""Rows of a plan from data of any kind, all read and checked before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from qpdsl.errors import DataError, shorten
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.values.value import Value
from qpdsl.runs.data.chosen_records import ChosenRecords, RowBinding
from qpdsl.runs.data.data_source import DataSource, LoadedData, load
from qpdsl.runs.data.field_notes import FieldNotes, understood
from qpdsl.runs.data.input_row import InputData, InputRow
from qpdsl.runs.data.known_sets import form_of
from qpdsl.runs.data.records import JSON_LINES
from qpdsl.session.programs import shipped_data
from qpdsl.session.settings import DataSettings

PLAIN = DataSettings()


def read_rows(
    source: DataSource | LoadedData,
    plan: PhysicalPlan,
    settings: Mapping[str, Value],
    options: DataSettings = PLAIN,
    used: Collection[str] | None = (),
) -> InputData:
    """Reads data, each record the arguments of one run of `plan`; a `source` of None means standard input.

    A path is a file or a folder; data may be loaded already. `settings` are the values of parameters that a record does
    not set. `used` are fields that are read for something else, such as a table by group; None where any may be. Raises
    DataError with all that is wrong with the rows that are taken, and UsageError for options that they do not fit.
    """
    data = source if isinstance(source, LoadedData) else load(source, options.split)
    chosen = ChosenRecords(data, options, lambda given: _problem_parameter(plan, {*settings, *given}))
    rows = _rows(data, plan, settings, chosen)
    # Of shipped rows it is known what they have besides.
    read = {*chosen.read, *(data.fields if used is None or data.name in shipped_data() else used)}
    fields = FieldNotes(plan, chosen.records, read, chosen.mapping.sources)
    notes = (*_notes(data, options, chosen), *fields.notes(data.name, data.records.unit, settings))
    grader = None if chosen.form is None else chosen.form.grader
    return InputData(rows, data.digest, notes, data.name, grader, frozenset(fields.in_every_row(settings)))


def _rows(
    data: LoadedData, plan: PhysicalPlan, settings: Mapping[str, Value], chosen: ChosenRecords
) -> tuple[InputRow, ...]:
    binding = RowBinding(plan, settings, chosen.mapping.taken_whole, data.records.is_text)
    rows: list[InputRow] = []
    first: dict[str, int] = {}
    for record in chosen.records:
        try:
            row = binding.row(record, chosen.typed(record))
            if row.id in first:
                here = "stands on line" if data.records.unit == "line" else "is that of row"
                raise ValueError(f"the id `{shorten(row.id)}` {here} {first[row.id]} already")
        except ValueError as error:
            chosen.findings.add(record.number, str(error))
            continue
        first[row.id] = record.number
        rows.append(row)
    chosen.findings.check(_help(data, plan, chosen))
    if not rows:
        raise DataError(f"{data.name}: the file is empty, it holds no row")
    return tuple(rows)


def _notes(data: LoadedData, options: DataSettings, chosen: ChosenRecords) -> Iterator[str]:
    """How the data was understood, a line each, where anything is not as usual."""
    if replace(options, input=None) != PLAIN or data.records.kind != JSON_LINES:
        yield understood(data, len(chosen.records), chosen.mapping, chosen.form)
    if data.records.left_out:
        fields = ", ".join(f"`{shorten(field, 24)}`" for field in data.records.left_out)
        yield f"note: {fields} hold what no program can read, such as images, and are left out"
    if "answer" not in chosen.mapping.sources and (looks := _unnamed_form(data, chosen)) is not None:
        yield f"note: {looks}"


def _unnamed_form(data: LoadedData, chosen: ChosenRecords) -> str | None:
    """What to say where the records have a published form that nothing names."""
    records = data.records.records
    form = form_of(records[0].fields) if records and chosen.form is None else None
    return None if form is None else f"these look like the fields of {form.name}: `--dataset {form.name}` reads them"


def _help(data: LoadedData, plan: PhysicalPlan, chosen: ChosenRecords) -> str | None:
    """What to do where records lack a parameter."""
    missing = next((param.name for param in plan.params if chosen.findings.lack(param.name)), None)
    if missing is None:
        return None
    used = {"answer", "id", *(param.name for param in plan.params)}
    others = [field for field in data.fields if field not in used]
    field = shorten(others[0], 24) if len(others) == 1 else "FIELD"
    return _unnamed_form(data, chosen) or f"`--map {missing}={field}` says which field holds it"


def _problem_parameter(plan: PhysicalPlan, given: set[str]) -> str | None:
    """The parameter that takes the problem of a known data set: one called so, or the first of text that has no value.

    None where each has one.
    """
    texts = [param for param in plan.params if param.type == "text" and param.name not in given]
    called = [param for param in texts if param.name in ("problem", "question")]
    needed = [param for param in texts if param.default is None]
    return next((param.name for param in (*called, *needed, *texts)), None)

"""The records that are taken of some data, in which order, and each as a row of a plan: the same on every machine."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, TypeVar

from qpdsl.arguments import ArgumentError, bind, from_json
from qpdsl.errors import DataError, UsageError, shorten, unknown
from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import walk
from qpdsl.grammar.parse.parser import parse_pipeline
from qpdsl.grammar.source import Source
from qpdsl.planner.plan.evaluate import evaluate_each
from qpdsl.planner.plan.logical import Parameter
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.values.library import AGGREGATES, ROW_FUNCTIONS
from qpdsl.planner.values.value import NUMBER, Value, format_value, frozen
from qpdsl.runs.data.data_source import LoadedData
from qpdsl.runs.data.field_mapping import FieldMapping, RecordField
from qpdsl.runs.data.field_notes import MAX_LISTED, Findings
from qpdsl.runs.data.input_row import InputRow, Reference, RightAnswer
from qpdsl.runs.data.known_sets import DatasetForm, form_called
from qpdsl.runs.data.records import DataRecord
from qpdsl.session.settings import DataSettings
from qpdsl.stage_options import check_options

T = TypeVar("T")

_LEAD = "where "
# Texts of the language have double quotes, which a shell takes for its own. Regexes are left alone.
_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*"|\bmatches\s*/(?:[^/\\\n]|\\.)*/)|'([^'\\]*)'""")
# So many names of fields a message lists.
_MAX_LISTED = 8
_WHOLE = re.compile(r"[+-]?[0-9]{1,1000}")
# Gives the name for the problem of a known data set, from the names that have a source of the user's; None for none.
ProblemName = Callable[[set[str]], str | None]


def shuffled(items: Sequence[T], seed: int) -> list[T]:
    """The items in an order that depends on the seed and their places alone: by a digest of both."""

    def key(place: int) -> bytes:
        return blake2b(f"{seed}:{place}".encode(), digest_size=16).digest()

    return [items[place] for place in sorted(range(len(items)), key=key)]


def spread(groups: Sequence[Hashable], count: int) -> list[int]:
    """The places of `count` items, as many of each group as of the others where it has so many, in their order.

    Of a group its first items are taken. What does not come out even goes to the groups that sort first, and what a
    group lacks to the others.
    """
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        places[group].append(place)
    waiting = {group: iter(places[group]) for group in sorted(places, key=_order)}
    taken: list[int] = []
    while waiting and len(taken) < count:
        for group, left in list(waiting.items()):
            found = next(left, None)
            if found is None:
                del waiting[group]
            elif len(taken) < count:
                taken.append(found)
    return sorted(taken)


def selected(records: Sequence[Mapping[str, Any]], options: DataSettings) -> list[int]:
    """The places of the records to take, in the order in which to take them, of those that fulfil the condition."""
    places = list(range(len(records)))
    if options.shuffle is not None:
        places = shuffled(places, options.shuffle)
    places = places[options.skip or 0 :]
    if options.spread is not None and options.limit is not None:
        groups = [group_of(records[place], options.spread) for place in places]
        return [places[at] for at in spread(groups, options.limit)]
    return places[: options.limit]


def group_of(record: Mapping[str, Any], field: str) -> Hashable:
    """The value of a field that rows are grouped by: a number, or else its text; None where the record lacks it."""
    value = record.get(field)
    return value if value is None or isinstance(value, int | float) else str(value)


def _order(group: Hashable) -> tuple[int, float, str]:
    if isinstance(group, int | float):
        return 0, float(group), ""
    return (2, 0.0, "") if group is None else (1, 0.0, str(group))


class RowCondition:
    """A condition that a record fulfils or not. Aggregates, as in `level == max(level)`, see all records.

    Texts may stand in single quotes. Raises UsageError for a text that is no expression.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        source = Source("--where", _LEAD + _QUOTED.sub(_double_quoted, text))
        parsed = parse_pipeline(source)
        stages = parsed.programs[0].body
        if parsed.errors:
            # The names of stages mean nothing here.
            fault = parsed.errors[0]
            raise UsageError(
                f"`--where {shorten(text)}`: {fault.message}", "as in `level >= 3 and subject == 'Algebra'`"
            )
        if len(stages) != 1 or not isinstance(stages[0], ast.Where):
            raise UsageError(f"`--where {shorten(text)}` must be one condition")
        self._condition = stages[0].condition
        for call in (node for node in walk(self._condition) if isinstance(node, ast.Apply)):
            known = {*AGGREGATES, *ROW_FUNCTIONS} - {"random"}
            if call.function not in known:
                raise UsageError(unknown(call.function, sorted(known), "`--where`: there is no function"))

    @property
    def fields(self) -> list[str]:
        """The fields that it reads, in the order in which they stand there."""
        return list(dict.fromkeys(node.id for node in walk(self._condition) if isinstance(node, ast.Name)))

    def chosen(self, records: Sequence[Mapping[str, Any]]) -> list[bool]:
        """Whether each record fulfils it. Raises UsageError for a field that none of them has."""
        known = dict.fromkeys(name for record in records for name in record)
        for name in self.fields:
            if name not in known:
                raise UsageError(unknown(name, known, "`--where`: the data has no field"))
        scopes = [{name: frozen(record.get(name)) for name in self.fields} for record in records]
        try:
            return [bool(value) for value in evaluate_each(self._condition, scopes)]
        # Nothing has checked that functions get what they take.
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise UsageError(f"`--where {shorten(self._text)}` cannot be worked out: {error}") from error

    def explain_none(self, records: Sequence[Mapping[str, Any]]) -> str:
        """What the fields hold that it reads, for the message that no record fulfils it."""
        first = [(name, next((r[name] for r in records if name in r), None)) for name in self.fields]
        if not first:
            return "it names no field; as in `level >= 3 and subject == 'Algebra'`"
        return "; ".join(f"`{name}` is {_sort(value)}, as {shorten(repr(value), 30)}" for name, value in first)


def _double_quoted(match: re.Match[str]) -> str:
    if match[1] is not None:
        return match[1]
    escaped = re.sub(r'(["{}])', r"\\\1", match[2])
    return f'"{escaped}"'


def _sort(value: object) -> str:
    return {bool: "a truth value", str: "text", dict: "a record", list: "a list"}.get(type(value), "a number")


@dataclass(frozen=True, slots=True)
class RowBinding:
    """Makes the rows of a plan. `settings` are the values of parameters that a record does not set.

    `left_out` are fields that a row need not keep. `is_text`: texts stand for values of other types too.
    """

    plan: PhysicalPlan
    settings: Mapping[str, Value]
    left_out: frozenset[str] = frozenset()
    is_text: bool = False

    def row(self, record: DataRecord, typed: Mapping[str, Any]) -> InputRow:
        """The row of a record whose fields are mapped; `typed` are these with numbers for the texts that spell them.

        Raises ValueError with what is wrong with it.
        """
        fields = record.fields
        own = {
            param.name: self._argument(param, fields[param.name]) for param in self.plan.params if param.name in fields
        }
        try:
            arguments = bind(self.plan.params, {**self.settings, **own})
        except ArgumentError as error:
            names = [f"`{shorten(name, 24)}`" for name in fields][:_MAX_LISTED]
            raise ArgumentError(f"{error}; the fields here are {', '.join(names)}" if names else str(error)) from error
        check_options(self.plan, arguments)
        reference = None if "answer" in arguments else _reference(fields.get("answer"))
        gone = {*arguments, *self.left_out, "id", "answer"}
        kept = {name: value for name, value in typed.items() if name not in gone}
        return InputRow(_id(fields, record.number), arguments, reference, kept, own=frozenset(own))

    def _argument(self, param: Parameter, value: Any) -> Value:
        return from_json(param, cell_value(param, value) if self.is_text else value)


def cell_value(param: Parameter, value: Any) -> Any:
    """What the text of a cell stands for where a parameter takes no text: a number, a truth value, or JSON.

    What it cannot stand for stays a text, which the parameter then refuses.
    """
    if not isinstance(value, str) or param.type == "text":
        return value
    word = value.strip()
    if param.type == "bool":
        return {"true": True, "false": False}.get(word.lower(), value)
    if param.type in ("int", "float"):
        return number_of(word) if NUMBER.fullmatch(word) else value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def number_of(word: str) -> int | float:
    """The number that a text spells which is one."""
    return int(word) if _WHOLE.fullmatch(word) else float(word)


def _id(fields: Mapping[str, Any], number: int) -> str:
    match fields.get("id"):
        case None:
            return str(number)
        case bool() | float() | list() | dict():
            raise ValueError("`id` must be text or a whole number")
        case "":
            raise ValueError("`id` is empty")
        case id_:
            return _text(str(id_), "id")


def _reference(value: object) -> Reference | None:
    if value is None:
        return None
    if isinstance(value, list):
        if not value:
            raise ValueError("`answer` is an empty list; one of several right answers must stand in it")
        return tuple(map(_right_answer, value))
    return _right_answer(value)


def _right_answer(value: object) -> RightAnswer:
    match value:
        case float() if not math.isfinite(value):
            raise ValueError("`answer` is too large a number")
        case str() | int() | float():
            return _text(format_value(value), "answer")
        case dict():
            return value
    raise ValueError("`answer` must be text, a number or an object, or a list of these")


def _text(text: str, field: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError(f"`{field}` holds half of a surrogate pair, which is no text")
    return text


class ChosenRecords:
    """The records of `data` that `options` take, mapped and in order.

    `records` are those without a fault; the faults of the others that are taken are in `findings`. Of a table as text,
    `numbers` are the fields whose texts all spell numbers. Raises DataError where no record fulfils the condition, and
    UsageError for options that the data does not fit.
    """

    def __init__(self, data: LoadedData, options: DataSettings, problem: ProblemName) -> None:
        self._options = options
        self._data = data
        self._condition = None if options.where is None else RowCondition(options.where)
        self.form = None if options.dataset is None else form_called(options.dataset, options.shuffle or 0)
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
            own = FieldMapping({"id": RecordField(self._options.id)}).over(own)
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
            shown = ", ".join(f"`{shorten(field, 24)}`" for field in fields[:MAX_LISTED])
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

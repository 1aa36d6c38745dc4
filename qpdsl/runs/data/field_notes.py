"""What the user should know of data: what is wrong with its records, how its fields were understood, what is unused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from qpdsl.errors import DataError, shorten
from qpdsl.grammar.suggest import closest, enumerated
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.values.value import Value
from qpdsl.runs.data.data_source import LoadedData
from qpdsl.runs.data.field_mapping import FieldMapping, RecordField, is_there
from qpdsl.runs.data.known_sets import DatasetForm
from qpdsl.runs.data.records import DataRecord

MAX_LISTED = 10
# What fields are called that tell rows apart, and those that hold the right answer.
_IDS = re.compile(r"(?i)(?:\w+_)?(?:id|idx|index|nr|no|num|number|key)|[qu]id|uuid|rowid|row")
_REFERENCES = re.compile(
    r"(?i)(?:(?:gold|correct|right|true|expected|reference|final|ground_truth)_?(?:answer|label|solution)?"
    r"|target|label|ground_?truth|solution|loesung|lösung)"
)
# How a field looks that tells more than it is called, what for, what that is, and the option that says so.
_TELLING = ((_IDS, "id", "an id", "--id "), (_REFERENCES, "answer", "the right answer", "--map answer="))


def place(name: str, unit: str, number: int) -> str:
    """Where in a file: a line as editors take it, or the rank of a row."""
    return f"{name}:{number}" if unit == "line" else f"{name}, row {number:,}"


def again(unit: str, numbers: Sequence[int]) -> str:
    """How often more than once."""
    rest = len(numbers) - 1
    return f" (and {rest:,} {unit}{'s' * (rest > 1)} more)" if rest else ""


class Findings:
    """What is wrong with records: each fault with the places where it was found."""

    def __init__(self, name: str, unit: str) -> None:
        self._name = name
        self._unit = unit
        self._numbers: dict[str, list[int]] = {}

    def add(self, number: int, fault: str) -> None:
        self._numbers.setdefault(fault, []).append(number)

    def lack(self, param: str) -> bool:
        """Whether some record had no value for the parameter."""
        return any(fault.startswith(f"no value for `{param}`") for fault in self._numbers)

    def check(self, help: str | None) -> None:
        """Raises DataError with the first faults, each with the place where it was found first, and how often again."""
        if self._numbers:
            raise DataError("\n".join(self._lines()), help)

    def _lines(self) -> Iterator[str]:
        faults = sorted(self._numbers.items(), key=lambda item: min(item[1]))
        for fault, numbers in faults[:MAX_LISTED]:
            yield f"{place(self._name, self._unit, min(numbers))}: {fault}{again(self._unit, numbers)}"
        rest = sum(len(numbers) for _, numbers in faults[MAX_LISTED:])
        if rest:
            yield f"{self._name}: {rest:,} more {self._unit}{'s' * (rest > 1)} with errors"


class FieldNotes:
    """The names of fields in the records that are taken, and what is not used of them and of the settings.

    `read` are fields that something reads besides the plan: the mapping, a condition. `named` are names that the user,
    or a known form, gave to values; of those, only what is likely a slip is said.
    """

    def __init__(
        self, plan: PhysicalPlan, records: Iterable[DataRecord], read: Iterable[str], named: Iterable[str]
    ) -> None:
        self._named = {*named}
        self._plan = plan
        self._params = [param.name for param in plan.params]
        self._rows = 0
        self._own = Counter[str]()
        self._unused: dict[str, list[int]] = {}
        meant = {*self._params, *read, "id", "answer"}
        for record in records:
            self._rows += 1
            for field in record.fields:
                self._own[field] += 1
                if field not in meant:
                    self._unused.setdefault(field, []).append(record.number)

    def notes(self, name: str, unit: str, settings: Mapping[str, Value]) -> Iterator[str]:
        """A line for each name that is likely a slip, one for all others, and one for each setting without effect."""
        meant = [param for param in self._params if self._own[param] < self._rows]
        if not self._own["answer"]:
            meant.append("answer")
        others = []
        for field, numbers in self._unused.items():
            near = None if _IDS.fullmatch(field) else closest(field, meant)
            where = place(name, unit, numbers[0])
            if field in self._plan.models:
                yield (
                    f"warning: {where}: `{field}` is a model of `{self._plan.name}`, which is the same for all rows: "
                    f"`--model {field}=ID`{again(unit, numbers)}"
                )
            elif near is None and field not in self._named:
                others.append(field)
            elif near is not None:
                yield (
                    f"warning: {where}: `{shorten(field)}` is no parameter of `{self._plan.name}`; "
                    f"did you mean `{near}`?{again(unit, numbers)}"
                )
        for looks, target, what, option in _TELLING:
            like = next((field for field in others if looks.fullmatch(field)), None)
            if like is not None and not self._own[target] and target not in {*self._params, *self._named}:
                others.remove(like)
                yield f"note: `{shorten(like, 24)}` looks like {what}: `{option}{like}` takes it for that"
        if others:
            shown = ", ".join(f"`{shorten(field, 24)}`" for field in others[:MAX_LISTED])
            rest = " and others" if len(others) > MAX_LISTED else ""
            yield f"note: {shown}{rest} {'are' if len(others) > 1 else 'is'} not used"
        for setting in self.in_every_row(settings):
            yield f"warning: `--set {setting}=…` has no effect, since every row of the input sets `{setting}`"

    def in_every_row(self, names: Iterable[str]) -> Iterator[str]:
        """Those of `names` that every row has a field of."""
        return (name for name in names if self._own[name] == self._rows)


def understood(data: LoadedData, count: int, mapping: FieldMapping, form: DatasetForm | None) -> str:
    """One line about how data was understood: how many rows of what are taken, and what the names are made of."""
    total = len(data.records.records)
    number = f"{count:,} of {total:,} rows" if count != total else f"{count:,} row{'s' * (count != 1)}"
    kind = data.records.kind if form is None else f"{data.records.kind}, {form.name}"
    there = {*data.fields}
    parts = [
        f"`{target}` from {source.words}"
        for target, source in mapping.sources.items()
        if is_there(source, there) and source != RecordField(target)
    ]
    if "answer" in there and "answer" not in mapping.sources:
        parts.append("the right answer from `answer`")
    if not {"id", *mapping.sources.get("id", RecordField("id")).reads} & there:
        header = " (the header is line 1)" if data.records.is_text and data.records.unit == "line" else ""
        parts.append(f"the id from the {data.records.unit}'s number{header}")
    return f"note: {number} of {data.name} ({kind}){': ' if parts else ''}{enumerated(parts, last='and')}"

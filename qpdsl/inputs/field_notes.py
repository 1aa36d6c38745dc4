"""What the user should know of the names in data: how they were understood, and which of them mean nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from qpdsl.errors import shorten
from qpdsl.grammar.suggest import closest, enumerated
from qpdsl.inputs.data_source import LoadedData
from qpdsl.inputs.findings import MOST_LISTED, again, place
from qpdsl.inputs.formats.data_record import DataRecord
from qpdsl.inputs.known.dataset_form import DatasetForm
from qpdsl.inputs.mapping.field_mapping import FieldMapping
from qpdsl.inputs.mapping.field_source import Field, is_there
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.values.value import Value


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
            near = closest(field, meant)
            where = place(name, unit, numbers[0])
            if field in self._plan.models:
                yield (
                    f"warning: {where}: `{field}` is a model of `{self._plan.name}`, which is the same for all rows: "
                    f"`--model {field}=ID`{again(unit, numbers)}"
                )
            elif near is None and field not in self._named:
                others.append(f"`{shorten(field, 24)}`")
            elif near is not None:
                yield (
                    f"warning: {where}: `{shorten(field)}` is no parameter of `{self._plan.name}`; "
                    f"did you mean `{near}`?{again(unit, numbers)}"
                )
        if others:
            are = "are no parameters" if len(others) > 1 else "is no parameter"
            shown = ", ".join(others[:MOST_LISTED]) + (" and others" if len(others) > MOST_LISTED else "")
            yield f"note: {shown} {are} of `{self._plan.name}`, and not used"
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
        if is_there(source, there) and source != Field(target)
    ]
    if "answer" in there and "answer" not in mapping.sources:
        parts.append("the right answer from `answer`")
    if not {"id", *mapping.sources.get("id", Field("id")).reads} & there:
        parts.append(f"the id from the {data.records.unit}'s number")
    return f"note: {number} of {data.name} ({kind}){': ' if parts else ''}{enumerated(parts, last='and')}"

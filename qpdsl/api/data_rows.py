"""Data as rows of Python, for `map` of a program and for what people do with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def read_rows(
    name: str,
    *,
    dataset: str | None = None,
    map: Mapping[str, str] | None = None,
    id: str | None = None,
    split: str | None = None,
    where: str | None = None,
    shuffle: int | None = None,
    skip: int | None = None,
    limit: int | None = None,
    spread: str | None = None,
) -> list[dict[str, Any]]:
    """The rows of some data, as `qpdsl run --input` takes them: a file or folder, `hf:ORG/NAME`, or `counting-500`.

    Each row is a dictionary of its fields, with `id` as text. A published `dataset` has its problem in `problem` and
    its right answer in `answer`; `map` gives names to fields and to what is made of them. The other keywords are the
    options of the command line. Raises UserError.
    """
    from qpdsl.runs.data.chosen_records import ChosenRecords
    from qpdsl.runs.data.data_source import data_source, load
    from qpdsl.session.settings import DataSettings

    options = DataSettings(
        dataset=dataset,
        maps=tuple(f"{name}={source}" for name, source in (map or {}).items()),
        id=id,
        split=split,
        where=where,
        shuffle=shuffle,
        skip=skip,
        limit=limit,
        spread=spread,
    )
    chosen = ChosenRecords(
        load(data_source(name), split), options, lambda given: None if "problem" in given else "problem"
    )
    chosen.findings.check(None)
    return [{**chosen.typed(record), "id": str(record.fields.get("id", record.number))} for record in chosen.records]

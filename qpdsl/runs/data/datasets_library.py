"""Folders and names on the Hugging Face hub, read by the library `datasets`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpdsl.errors import DataError, UsageError, installing, shorten, unknown
from qpdsl.grammar.suggest import listed
from qpdsl.runs.data.records import DataRecord, RecordSet, plain_fields
from qpdsl.runs.record_file import ENDINGS

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

HUB = "hf:"
_NAME = re.compile(r"hf:(?P<repository>[\w.-]+(?:/[\w.-]+)?)(?::(?P<config>[^:@]+))?(?:@(?P<revision>[^:@]+))?")
# Files whose names end so are data, also where they are packed.
_DATA = (*ENDINGS, ".tsv", ".arrow")
# The split that is taken where several are there and none is named.
_USUAL_SPLIT = "test"


@dataclass(frozen=True, slots=True)
class HubName:
    """`hf:org/name[:config][@revision]`: a data set on the hub."""

    repository: str
    config: str | None = None
    revision: str | None = None

    @classmethod
    def of(cls, name: str) -> HubName:
        """Raises UsageError."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise UsageError(f"`{shorten(name)}` names no data set of the hub", "`hf:org/name[:config][@revision]`")
        return cls(match["repository"], match["config"], match["revision"])


def read_hub(name: HubName, split: str | None) -> RecordSet:
    """The rows of a split of a data set on the hub, which is downloaded where the user's cache lacks it.

    Raises DataError, and UsageError without `datasets`.
    """
    library = _library(f"{HUB}{name.repository}")
    try:
        loaded = library.load_dataset(name.repository, name.config, revision=name.revision)
    # The library, and those below it, raise errors of many kinds.
    except Exception as error:
        help = "with no network, name a file or a folder that holds it; `HF_ENDPOINT` names another hub"
        raise DataError(f"cannot load `{name.repository}` from the hub: {_first_line(error)}", help) from error
    return _records(f"{HUB}{name.repository}", loaded, split, "a data set of the hub")


def read_folder(path: Path, split: str | None) -> RecordSet:
    """The rows of a split of a folder: what `save_to_disk` wrote, or files of data. Nothing is written beside it.

    Raises DataError, and UsageError without `datasets`.
    """
    saved = any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))
    if not saved and not any(file.name.removesuffix(".gz").endswith(_DATA) for file in path.rglob("*")):
        raise DataError(f"{path}: no file in this folder holds data", "Parquet, JSON lines, CSV and Arrow are read")
    library = _library(str(path))
    # What the library makes of the files would else stay in the user's cache, and be taken for them later.
    with tempfile.TemporaryDirectory(prefix="qpdsl-data-") as cache:
        try:
            loaded = library.load_from_disk(str(path)) if saved else library.load_dataset(str(path), cache_dir=cache)
            return _records(str(path), loaded, split, "a `datasets` folder")
        except (DataError, UsageError):
            raise
        except Exception as error:
            raise DataError(f"{path}: the folder cannot be read: {_first_line(error)}") from error


def _library(name: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UsageError(f"{name}: folders and data sets of the hub need `datasets`", installing("data")) from error
    datasets.disable_progress_bars()
    # What is wrong is told once, by the exception.
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    return datasets


def _records(name: str, loaded: Dataset | DatasetDict, split: str | None, kind: str) -> RecordSet:
    rows = _split(name, loaded, split)
    left_out: set[str] = set()
    names = {field: feature.int2str for field, feature in rows.features.items() if hasattr(feature, "int2str")}
    # Images and sounds would be decoded only to be left out.
    plain = rows.with_format("arrow")
    records = tuple(
        DataRecord(number, _named(plain_fields(row, left_out), names))
        for number, row in enumerate(plain[:].to_pylist(), 1)
    )
    return RecordSet(kind, "row", records, left_out=tuple(sorted(left_out)))


def _named(fields: dict[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with the names of classes in place of their numbers; those below 0 say that none is known."""
    for field in names.keys() & fields.keys():
        fields[field] = names[field](fields[field]) if fields[field] >= 0 else None
    return fields


def _split(name: str, loaded: Dataset | DatasetDict, split: str | None) -> Dataset:
    if not isinstance(loaded, dict):
        own = str(loaded.split or "") or None
        if split is not None and split != own:
            raise UsageError(f"`--split {split}`: `{name}` has one part{f', `{own}`' if own else ' without a name'}")
        return loaded
    names = list(loaded)
    wanted = split or (names[0] if len(names) == 1 else _USUAL_SPLIT)
    if wanted in loaded:
        return loaded[wanted]
    if split is not None:
        raise UsageError(unknown(split, names, f"`{name}` has no split"))
    raise UsageError(f"`{name}` has the splits {listed(names, last='and')}", "`--split NAME` takes one of them")


def _first_line(error: BaseException) -> str:
    # "An error occurred while generating the dataset" says less than what it came from.
    told = error.__cause__ or error
    lines = str(told).strip().splitlines()
    return shorten(lines[0], 200) if lines else type(error).__name__

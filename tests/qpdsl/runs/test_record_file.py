"""Records as files: the ending names the format, and other programs read what was written."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.errors import UsageError
from qpdsl.runs.record_file import FORMATS, first_fields, parquet_bytes, record_format, text_lines

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text('a-=,"\n\té5', max_size=6),
    st.lists(st.integers(0, 9), max_size=2),
)
RECORDS = st.lists(
    st.dictionaries(st.sampled_from(["id", "answer", "score"]), VALUES, min_size=1), min_size=1, max_size=5
)


def written(records: list[dict[str, Any]], form: str) -> bytes:
    if form == "parquet":
        return parquet_bytes(records)
    return "".join(f"{line}\n" for line in text_lines(records, form)).encode()


@pytest.mark.parametrize(
    ("name", "asked", "form"),
    [
        ("o.jsonl", None, "jsonl"),
        ("o.ndjson", None, "jsonl"),
        ("o.JSON", None, "json"),
        ("o.csv", None, "csv"),
        ("a.csv/o.parquet", None, "parquet"),
        ("results", None, "jsonl"),
        ("results.txt", "csv", "csv"),
        ("o.csv", "csv", "csv"),
    ],
)
def test_the_ending_is_the_format(name: str, asked: str | None, form: str) -> None:
    assert record_format(name, asked) == form


@pytest.mark.parametrize(
    ("name", "asked"), [("o.xlsx", None), ("o.tsv", None), ("o.jsonl.gz", None), ("o.csv", "json")]
)
def test_another_format_is_refused(name: str, asked: str | None) -> None:
    with pytest.raises(UsageError, match=f"`{name}`"):
        record_format(name, asked)


@given(RECORDS)
def test_what_was_written_is_read(records: list[dict[str, Any]]) -> None:
    lines = written(records, "jsonl").decode().splitlines()
    assert [json.loads(line) for line in lines] == records == json.loads(written(records, "json"))
    names = list(dict.fromkeys(name for record in records for name in record))
    table = list(csv.DictReader(io.StringIO(written(records, "csv").decode(), newline="")))
    assert len(table) == len(records) and list(table[0]) == names
    read = pq.read_table(io.BytesIO(written(records, "parquet")))
    assert read.num_rows == len(records) and read.column_names == names
    for form in FORMATS:
        fields = first_fields(io.BytesIO(written(records, form)))
        assert list(fields) == (list(records[0]) if form in ("jsonl", "json") else names)


def test_a_column_of_one_kind_keeps_it() -> None:
    records = [
        {"a": 1, "b": 1, "c": "x", "d": True, "e": 1, "f": 2**70},
        {"a": None, "b": 0.5, "c": "y", "d": False, "e": "z", "f": 1},
    ]
    columns = pq.read_table(io.BytesIO(parquet_bytes(records))).to_pydict()
    assert columns == {
        "a": [1, None],
        "b": [1.0, 0.5],
        "c": ["x", "y"],
        "d": [True, False],
        "e": ["1", "z"],
        "f": [str(2**70), "1"],
    }


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+2", "'=1+2"),
        ("+cmd", "'+cmd"),
        ("-x", "'-x"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\tx", "'\tx"),
        ("-5", "-5"),
        ("-1.5e3", "-1.5e3"),
        (-5, "-5"),
        ("a=1", "a=1"),
        ("12 - 5", "12 - 5"),
    ],
)
def test_no_text_in_csv_is_a_formula_and_numbers_stay(value: Any, cell: str) -> None:
    _, line = text_lines([{"a": value, "b": 1}], "csv")
    assert next(csv.reader([line])) == [cell, "1"]


@pytest.mark.parametrize(
    "data", [b"", b"\0\0", b"PAR1 and no more", b"[\n", b'"open', b"\xff\xfe", b"notes\n", b"{", b"[" * 100_000]
)
def test_other_files_have_no_such_fields(data: bytes) -> None:
    assert not {"id", "answer"} & set(first_fields(io.BytesIO(data)))

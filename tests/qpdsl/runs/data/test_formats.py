"""Files of every format give the same rows, and what is wrong with one is told by its place."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.errors import DataError, UsageError
from qpdsl.runs.data.data_source import given as given_rows
from qpdsl.runs.data.datasets_library import HubName
from qpdsl.runs.data.input_row import InputData
from qpdsl.runs.data.records import read_delimited, read_records
from qpdsl.runs.data.rows import read_rows
from qpdsl.session.settings import DataSettings
from tests.qpdsl.runs.data.plans import PLAN, planned

RECORDS: list[dict[str, Any]] = [
    {"problem": 'a "quoted", text\nof two lines', "n": 3, "answer": "4", "level": 1},
    {"problem": "b; \t’", "answer": "5", "level": 2},
]


def as_csv(separator: str) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, ["problem", "n", "answer", "level"], delimiter=separator)
    writer.writeheader()
    writer.writerows(RECORDS)
    return file.getvalue().encode()


def as_parquet() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(RECORDS), file)
    return file.getvalue()


LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
FORMATS = {
    "JSON lines": LINES,
    "gzip": gzip.compress(LINES),
    "array": json.dumps(RECORDS, indent=1).encode(),
    "array on a line": json.dumps(RECORDS).encode(),
    "CSV": as_csv(","),
    "CSV of Excel": b"\xef\xbb\xbf" + as_csv(";"),
    "TSV": as_csv("\t"),
    "Parquet": as_parquet(),
}


def read(path: Path, data: bytes, **options: Any) -> InputData:
    path.write_bytes(data)
    return read_rows(path, PLAN, {}, DataSettings(**options))


@pytest.mark.parametrize("name", ["data", "data.jsonl", "data.csv", "data.json"])
@pytest.mark.parametrize("format", FORMATS)
def test_what_a_file_holds_says_what_it_is(tmp_path: Path, format: str, name: str) -> None:
    data = read(tmp_path / name, FORMATS[format])
    assert [(dict(row.arguments), row.reference, dict(row.fields)) for row in data.rows] == [
        ({"problem": RECORDS[0]["problem"], "n": 3}, "4", {"level": 1}),
        ({"problem": RECORDS[1]["problem"], "n": 4}, "5", {"level": 2}),
    ]


def test_a_table_called_json_lines_is_read_and_said_to_be_one(tmp_path: Path) -> None:
    data = read(tmp_path / "d.jsonl", b"problem,answer\na,1\nb,2\n")
    assert data.notes == (
        f"note: 2 rows of {tmp_path / 'd.jsonl'} (CSV): the right answer from `answer` and the id from the line's "
        "number (the header is line 1)",
    )


def test_cells_become_what_parameters_take(tmp_path: Path) -> None:
    plan = planned("problem: text, n: int = 1, x: float = 0.5, on: bool = false, tags: [text] = []")
    path = tmp_path / "d.csv"
    path.write_text('problem,n,x,on,tags,id\n007,2,.25,True,"[""a"",""b""]",007\n8,,,,,b\n')
    first, second = read_rows(path, plan, {}).rows
    assert first.arguments == {"problem": "007", "n": 2, "x": 0.25, "on": True, "tags": ("a", "b")}
    assert second.arguments == {"problem": "8", "n": 1, "x": 0.5, "on": False, "tags": ()}
    assert (first.id, second.id) == ("007", "b")


def test_a_cell_never_names_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    data = read(tmp_path / "d.csv", f"problem,answer\n@{tmp_path / 'secret.txt'},1\n".encode())
    assert data.rows[0].arguments["problem"] == f"@{tmp_path / 'secret.txt'}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("problem,n\na,3\nb\n", ":3: 1 cell, where the header names 2 fields"),
        ("problem,n\na,3\nb,x\n", ':3: `n` takes a whole number, not the text "x"'),
        ('problem,n\n"a\nb",3\nc,x\n', ':4: `n` takes a whole number, not the text "x"'),
        ("problem,problem\na,3\n", ":1: two columns are called `problem`"),
        ('problem,n\na,3\n"b,4\n', ":3: broken table: unexpected end of data"),
        ("problem,n\na,\xff\n", ":2: the table is not UTF-8 text"),
    ],
)
def test_a_faulty_table_is_told_by_its_lines(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path / "d.csv", text.encode("latin-1"))
    assert caught.value.message == f"{tmp_path / 'd.csv'}{message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"problem": "a"}, 3]', ", row 2: an item of the array must be an object, not `3`"),
        ('[{"problem": "a"},\n {"problem": 3}]', ", row 2: `problem` takes text, not 3"),
        ('[{"problem": "a"},\n {"problem": }]', ": broken JSON at line 2, column 14: expecting value"),
        ("[]", ": the file is empty, it holds no row"),
    ],
)
def test_a_faulty_array_is_told_by_its_rows(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path / "d.json", text.encode())
    assert caught.value.message == f"{tmp_path / 'd.json'}{message}"


def test_several_right_answers(tmp_path: Path) -> None:
    data = read(tmp_path / "d", b'{"problem": "a", "answer": ["4", 4.5, {"x": 1}]}')
    assert data.rows[0].reference == ("4", "4.5", {"x": 1})


def test_images_and_other_bytes_are_left_out(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([{"problem": "a", "image": b"\x89PNG", "x": float("nan")}]), file)
    data = read(tmp_path / "d", file.getvalue())
    assert data.rows[0].fields == {} and "`image` hold" in data.notes[1]


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError) as caught:
        read(tmp_path / "d", FORMATS["Parquet"])
    assert caught.value.help is not None and caught.value.help.endswith("[data]'`")


def test_folders_of_datasets_have_splits(tmp_path: Path) -> None:
    import datasets

    part = datasets.Dataset.from_list([{"problem": "a", "level": 0}, {"problem": "b", "level": 1}])
    levels = part.cast_column("level", datasets.ClassLabel(names=["easy", "hard"]))
    datasets.DatasetDict({"train": levels, "test": levels.select([1])}).save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "files").mkdir()
    levels.to_parquet(str(tmp_path / "files" / "test-00000-of-00001.parquet"))
    levels.to_parquet(str(tmp_path / "files" / "train-00000-of-00001.parquet"))
    saved = read_rows(tmp_path / "saved", PLAN, {})
    assert [(row.arguments["problem"], row.fields) for row in saved.rows] == [("b", {"level": "hard"})]
    assert len(read_rows(tmp_path / "saved", PLAN, {}, DataSettings(split="train")).rows) == 2
    files = read_rows(tmp_path / "files", PLAN, {}, DataSettings(split="train"))
    assert [row.fields for row in files.rows] == [{"level": "easy"}, {"level": "hard"}]
    assert files.digest == read_rows(tmp_path / "saved", PLAN, {}, DataSettings(split="train")).digest != saved.digest
    with pytest.raises(UsageError, match="has no split `tst`; did you mean `test`"):
        read_rows(tmp_path / "saved", PLAN, {}, DataSettings(split="tst"))


def test_a_file_has_no_splits(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a file has no splits"):
        read(tmp_path / "d", LINES, split="test")


def test_names_on_the_hub() -> None:
    assert HubName.of("hf:openai/gsm8k") == HubName("openai/gsm8k")
    assert HubName.of("hf:openai/gsm8k:main@refs/pr/1") == HubName("openai/gsm8k", "main", "refs/pr/1")
    for name in ("hf:", "hf:a/b/c", "hf:a b"):
        with pytest.raises(UsageError):
            HubName.of(name)


def test_without_a_network_the_hub_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach the Hub\nsecond line")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError) as caught:
        read_rows(HubName("openai/gsm8k"), PLAN, {})
    assert caught.value.message == "cannot load `openai/gsm8k` from the hub: Couldn't reach the Hub"


CELLS = st.text(st.characters(blacklist_characters="\0\r", blacklist_categories=["Cs"]), min_size=1).filter(str.strip)


@given(st.lists(st.fixed_dictionaries({"problem": CELLS, "b": CELLS}), min_size=1, max_size=5), st.sampled_from(",\t;"))
def test_a_table_gives_back_what_was_written(rows: list[dict[str, str]], separator: str) -> None:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, ["problem", "b"], delimiter=separator)
    writer.writeheader()
    writer.writerows(rows)
    records = read_delimited("d", file.getvalue(), separator).records
    assert [dict(record.fields) for record in records] == rows
    assert [dict(record.fields) for record in read_records("d", file.getvalue().encode()).records] == rows


def test_a_gzip_file_that_unpacks_to_nothing_but_lines_is_refused() -> None:
    with pytest.raises(DataError, match="unpacks to more than 200 times its size"):
        read_records("in.jsonl.gz", gzip.compress(b"\n" * (70 << 20)))


def test_a_file_of_blank_lines_is_read_at_once() -> None:
    assert read_records("in.jsonl", b"\n" * (20 << 20)).records == ()
    found = read_records("in.jsonl", b'\n\n{"a": 1}' + b"\n" * (20 << 20) + b' {"a": 2}\r\n\n').records
    assert [(record.number, record.fields["a"]) for record in found] == [(3, 1), (3 + (20 << 20), 2)]
    assert "blank lines follow one another" in read_records("in.csv", b"a,b\n1,2\n" + b"\n" * 1_100_000).faults[0][1]


def test_a_line_without_an_end_is_refused() -> None:
    long = b'{"a": "' + b"x" * (65 << 20)
    with pytest.raises(DataError, match="the first record is longer than 64 MiB"):
        read_records("in.jsonl", long)
    assert read_records("in.jsonl", b'{"a": 1}\n' + long).faults == ((2, "the line is longer than 64 MiB"),)


def test_parquet_that_holds_no_text_or_no_time_of_python_is_refused() -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    offsets, letters = pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")
    columns = [pa.Array.from_buffers(pa.string(), 1, [None, offsets, letters]), pa.array([2**62], pa.timestamp("us"))]
    for column in columns:
        file = io.BytesIO()
        pq.write_table(pa.table({"problem": column}), file)
        with pytest.raises(DataError, match=r"x\.parquet: broken Parquet file: "):
            read_records("x.parquet", file.getvalue())


def test_rows_of_python_that_are_no_json_are_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    for value, words in ((endless, "nested too deep"), ("\ud800", "half of a surrogate pair"), ({1}, "not JSON")):
        with pytest.raises(DataError, match=f"rows: row 1 .*{words}"):
            given_rows([{"problem": value}])

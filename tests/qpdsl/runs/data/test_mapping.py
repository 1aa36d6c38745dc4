"""`--map`: what a name is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.errors import DataError, UsageError
from qpdsl.runs.data.field_mapping import FieldMapping, field_source, last_number
from qpdsl.runs.data.rows import read_rows
from qpdsl.session.settings import DataSettings
from tests.qpdsl.runs.data.plans import PLAN

FIELDS: dict[str, Any] = {
    "question": "How many?",
    "answer": "so\n#### 1,450",
    "solution": r"\boxed{1} then \boxed{\frac{1}{2}}",
    "meta": {"level": "Level 5", "tags": ["a", "b"]},
    "choices": '["x", "y"]',
    "count": 7,
    "a:b": "odd",
}


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("question", "How many?"),
        ("meta.level", "Level 5"),
        ("meta.tags[-1]", "b"),
        ("meta.other", None),
        ("none", None),
        ("a:b", "odd"),
        (r"regex:#### ([\d,]+)", "1,450"),
        (r"question:regex:\w+", "How"),
        ("answer:number", 1450),
        ("meta.level:number", 5),
        ("count:number", 7),
        ("solution:boxed", r"\frac{1}{2}"),
        ("choices:json", ["x", "y"]),
        ("Q: {question} {{{count}}}\nA:", "Q: How many? {7}\nA:"),
        ("{meta.tags}", '["a", "b"]'),
    ],
)
def test_sources(source: str, value: object) -> None:
    assert field_source("answer", source).value(FIELDS) == value


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("regex:x(y)", "the regex finds nothing in `answer`: so #### 1,450"),
        ("question:number", "there is no number in `question`: How many?"),
        ("question:boxed", r"there is no `\boxed{…}` in `question`: How many?"),
        ("meta:number", "`meta` must be text"),
        ("question:json", "broken JSON at column 1"),
        ("{question} {none}", "the record has no `none`, which a text is made of"),
    ],
)
def test_what_a_field_lacks(source: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        field_source("answer", source).value(FIELDS)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["problem"], "`--map` takes NAME=SOURCE, not `problem`"),
        (["problem="], "`--map` takes NAME=SOURCE"),
        (["a=b", "a=c"], "`--map` gives `a` twice"),
        (["a=regex:("], "the regex `(` cannot be used"),
        (["a={b"], "`{` names no field"),
        (["a={}"], "`{}` names no field"),
    ],
)
def test_what_is_no_source(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        FieldMapping.parsed(texts)
    assert message in caught.value.message


@given(st.integers(-(10**12), 10**12))
def test_numbers_with_commas_are_read(number: int) -> None:
    assert last_number(f"It was 3 and is {number:,} now.") == number


@pytest.mark.parametrize(
    ("text", "number"), [("pages 3-4", 4), ("x = -4", -4), ("$1,234.50 in all", 1234.5), (".5", 0.5), ("1,2", 2)]
)
def test_the_last_number(text: str, number: float) -> None:
    assert last_number(text) == number


def read(folder: Path, text: str, **options: Any) -> Any:
    file = folder / "d.jsonl"
    file.write_text(text, "utf-8")
    return read_rows(file, PLAN, {}, DataSettings(**options))


def test_fields_get_the_names_of_parameters(tmp_path: Path) -> None:
    text = '{"question": "a", "answer": "x #### 4", "uid": "u1", "extra": 1}\n'
    data = read(tmp_path, text, maps=("problem=question", r"answer=regex:#### (-?\d+)"), id="uid")
    (row,) = data.rows
    assert (row.id, row.arguments["problem"], row.reference, row.fields) == ("u1", "a", "4", {"extra": 1})
    assert data.notes == (
        f"note: 1 row of {tmp_path / 'd.jsonl'} (JSON lines): `problem` from `question`, `answer` from `answer` (by a "
        "regex) and `id` from `uid`",
        "note: `extra` is not used",
    )


def test_a_slip_in_a_name_is_told(tmp_path: Path) -> None:
    text = '{"question": "a", "problem": "b", "answer": 1}\n'
    with pytest.raises(UsageError, match="the data has no field `qestion`; did you mean `question`"):
        read(tmp_path, text, maps=("problem=qestion",))
    with pytest.raises(UsageError, match="it is PARAMETER=FIELD") as reversed_:
        read(tmp_path, text.replace("problem", "aufgabe"), maps=("aufgabe=problem",))
    assert reversed_.value.help == "`--map problem=aufgabe`"
    with pytest.raises(UsageError, match="stands again for the next: `--map problem=question --map answer=answer`"):
        read(tmp_path, text, maps=("problem=question,answer=answer",))
    with pytest.raises(UsageError, match="`--map id=…`: the data has no field `uid`"):
        read(tmp_path, text, id="uid")
    assert "did you mean `n`?" in read(tmp_path, text, maps=("nn=answer:number",)).notes[1]


def test_every_record_that_a_source_does_not_fit_is_named(tmp_path: Path) -> None:
    text = '{"problem": "a", "answer": "#### 1"}\n{"problem": "b", "answer": "2"}\n{"problem": "c", "answer": "2"}\n'
    with pytest.raises(DataError) as caught:
        read(tmp_path, text, maps=("answer=regex:#### (.+)",))
    assert caught.value.message.endswith(":2: the regex finds nothing in `answer`: 2 (and 1 line more)")
    chosen = read(tmp_path, text, maps=("answer=regex:#### (.+)",), where="problem == 'a'")
    assert [row.reference for row in chosen.rows] == ["1"]


def test_two_ways_to_name_rows_do_not_go_together() -> None:
    with pytest.raises(UsageError, match="both say what names a row"):
        DataSettings(id="a", maps=("id=b",))

"""Lists of values: commas part them, but not those within JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpdsl.errors import UsageError
from qpdsl.runs.grid import split_values

TEXTS = st.lists(st.text(), min_size=1, max_size=5, unique=True)
JSON = st.recursive(
    st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(TEXTS)
def test_every_text_can_be_quoted(texts: list[str]) -> None:
    assert split_values(",".join(map(json.dumps, texts)), "the list") == tuple(texts)


@settings(max_examples=30)
@given(st.lists(st.lists(JSON) | st.dictionaries(st.text(), JSON), min_size=1, max_size=4, unique_by=json.dumps))
def test_lists_and_objects_need_no_quotes(values: list[object]) -> None:
    written = [json.dumps(value) for value in values]
    assert split_values(", ".join(written), "the list") == tuple(written)


@given(st.lists(st.text(st.characters(exclude_characters=',"[{'), min_size=1), min_size=1, max_size=5, unique=True))
def test_other_values_are_what_stands_between_commas(texts: list[str]) -> None:
    if all(text.strip() for text in texts):
        assert split_values(",".join(texts), "the list") == tuple(texts)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("4,16,64", ("4", "16", "64")),
        ("", ("",)),
        ('"a, b",c', ("a, b", "c")),
        ('""', ("",)),
        ('x,""', ("x", "")),
        # What only begins like JSON is text.
        ('"a" or b,c', ('"a" or b', "c")),
        ("[a,b]", ("[a", "b]")),
        ("@shots.jsonl,@more.jsonl", ("@shots.jsonl", "@more.jsonl")),
    ],
)
def test_examples(text: str, values: tuple[str, ...]) -> None:
    assert split_values(text, "the list") == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4,,16", "the list has an empty value in `4,,16`"),
        ("4,", "the list has an empty value"),
        (",", "the list has an empty value"),
        ("4,16,4", "the list names the value `4` twice"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split_values(text, "the list")

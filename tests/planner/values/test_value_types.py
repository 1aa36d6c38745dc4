"""Types as words, and which type fits where."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from qpdsl.planner.values.value import (
    common_of,
    common_type,
    fields_of,
    fits,
    frozen,
    holds,
    item_of,
    list_of,
    record_of,
    type_at,
)

NAMES = st.sampled_from(["a", "b", "text", "per"])
TYPES = st.recursive(
    st.sampled_from(["text", "int", "float", "bool", "record"]),
    lambda inner: st.one_of(
        st.builds(list_of, inner), st.builds(record_of, st.dictionaries(NAMES, inner, min_size=1, max_size=3))
    ),
    max_leaves=6,
)


@given(st.dictionaries(NAMES, TYPES, min_size=1, max_size=3), TYPES)
def test_what_a_type_is_made_of_is_found_in_it(fields: dict[str, str], item: str) -> None:
    assert fields_of(record_of(fields)) == fields
    assert item_of(list_of(item)) == item
    for name, type_ in fields.items():
        assert type_at(list_of(record_of(fields)), 3) == record_of(fields)
        assert type_at(record_of(fields), name) == type_


@given(TYPES, TYPES)
@example("[{a: bool, b: bool}]", "[{b: bool, a: bool}]")
def test_the_common_type_takes_both(left: str, right: str) -> None:
    both = common_type(left, right)
    assert both == common_type(right, left)
    if both is not None:
        assert fits(left, both)
        assert fits(right, both)
    elif fits(left, right):
        raise AssertionError(f"{left} fits {right}, and they have nothing in common")


def test_what_fits_where() -> None:
    assert fits("int", {"float"})
    assert not fits("float", {"int"})
    assert fits("[int]", "[float]")
    assert fits("[text]", "[unknown]")
    assert fits(record_of({"a": "int"}), record_of({"a": "float"}))
    assert fits(record_of({"a": "int"}), "record")
    assert not fits(record_of({"a": "int"}), record_of({"b": "int"}))
    assert not fits("[text]", "text")
    assert common_of(["int", "none", "float"]) == "float"
    assert common_of(["int", "text"]) is None
    assert common_of([]) == "unknown"
    assert record_of({"a b": "int"}) == "record"
    assert type_at("text", 0) is None
    assert type_at("record", "a") == "unknown"


def test_which_values_are_of_a_type() -> None:
    assert holds("float", 1)
    assert not holds("int", True)
    assert holds("[float]", (1, None, 2.5))
    assert not holds("[int]", (1, "a"))
    assert holds(record_of({"a": "int", "b": "text"}), frozen({"a": 1}))
    assert not holds(record_of({"a": "int"}), frozen({"b": 1}))
    assert not holds("record", ())

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.errors import UsageError
from qpdsl.runs.compare.comparison import compare, matched
from qpdsl.runs.compare.side import Side, side_of
from tests.support.compared_runs import kept, row


def of(*rows: dict[str, object]) -> Side:
    return side_of([kept([row(number, "1", **values) for number, values in enumerate(rows)])])  # type: ignore[arg-type]


def ids(side: Side, other: Side) -> list[tuple[str, str]]:
    return [(one.id, another.id) for one, another in matched(side, other).pairs]


def test_equal_arguments_are_the_same_problem_whatever_else_differs() -> None:
    first = of({"key": "x", "id": "a"}, {"key": "y", "id": "b"})
    second = of({"key": "y", "id": "1", "asked": "other", "reference": "7"}, {"key": "x", "id": "2"})
    assert ids(first, second) == [("a", "2"), ("b", "1")]


def test_parameters_of_the_program_are_arguments_too() -> None:
    """At another width every row has other arguments, and the problems are the same."""
    first, second = (of(*({"key": f"{width} {n}"} for n in range(4))) for width in (4, 8))
    assert len(matched(first, second).pairs) == 4 and matched(first, second).reworded == 0


def test_the_same_problem_in_another_file_is_known_by_its_text() -> None:
    first = of({"id": "a", "asked": "one"}, {"id": "b", "asked": "two"})
    second = of({"id": "1", "key": "u", "asked": "two"}, {"id": "2", "key": "v", "asked": "one"})
    assert ids(first, second) == [("a", "2"), ("b", "1")]
    # The beginning of a long text may be that of many.
    cut = [of({"id": name, "key": name, "asked": "a long text that goes on…"}) for name in ("a", "b")]
    assert ids(*cut) == []


def test_other_words_are_matched_by_id_where_most_right_answers_agree() -> None:
    first = of(*({"key": f"x{n}", "asked": f"{n}?", "reference": str(n)} for n in range(4)))
    second = of(*({"key": f"y{n}", "asked": f"Say: {n}?", "reference": str(n)} for n in range(4)))
    assert matched(first, second).reworded == 4
    # One right answer in four may be equal by chance, where ids are numbers of lines.
    other = of(*({"key": f"z{n}", "asked": f"Else {n}", "reference": "0"} for n in range(5)))
    found = matched(first, other)
    assert (found.pairs, found.reworded, len(found.only_first), len(found.only_second)) == ((), 0, 4, 5)


def test_nothing_in_common_is_refused() -> None:
    with pytest.raises(UsageError, match="the runs have no problem in common"):
        compare(of({"asked": "a", "reference": "1"}), of({"key": "k", "asked": "b", "reference": "2"}))
    with pytest.raises(UsageError, match="`run` has no finished row to compare"):
        compare(of({}), of())


KEYS = st.lists(st.sampled_from("abcd"), max_size=8)


@given(KEYS, KEYS)
def test_each_problem_is_in_one_pair_at_most(first: list[str], second: list[str]) -> None:
    one = of(*({"key": key, "id": f"{n}", "asked": ""} for n, key in enumerate(first)))
    other = of(*({"key": key, "id": f"{n}", "asked": ""} for n, key in enumerate(second)))
    found = matched(one, other)
    same = sum(min(first.count(key), second.count(key)) for key in "abcd")
    assert len(found.pairs) >= same
    assert len(found.pairs) + len(found.only_first) == len(first)
    assert len(found.pairs) + len(found.only_second) == len(second)
    assert len({id(another) for _, another in found.pairs}) == len(found.pairs)

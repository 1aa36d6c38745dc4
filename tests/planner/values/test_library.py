"""The functions that are built in: those over one row, and the aggregates against what a statistics library says."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpdsl.grammar import words
from qpdsl.planner.plan.evaluate import evaluate, evaluate_each, evaluate_rows
from qpdsl.planner.values.library import AGGREGATES, MAX_CHARACTERS, MAX_ITEMS, ROW_FUNCTIONS, TooLarge
from qpdsl.planner.values.value import frozen
from tests.support.executor.rows import expr

COLUMNS: dict[str, Any] = {"t": " 12 ", "x": 2.5, "n": 3, "no": None, "l": frozen(["a", None, "b"]), "ok": True}


def test_every_function_of_the_language_is_there() -> None:
    assert (*AGGREGATES,) == words.AGGREGATES
    assert {*AGGREGATES, *ROW_FUNCTIONS} == set(words.FUNCTIONS)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("int(t)", 12),
        ("int(x)", 2),
        ('int("2.5")', None),
        ('int("1_000")', None),
        ('int("٣")', None),
        ("int(ok)", 1),
        ("float(t)", 12.0),
        ('float("1e999")', None),
        ('float("nan")', None),
        ("text(x)", "2.5"),
        ("text(l)", '["a", null, "b"]'),
        ("text(no)", None),
        ("len(l)", 3),
        ("len(t)", 4),
        ('upper(strip(t + "é"))', "12 É"),
        ('lower("ABC")', "abc"),
        ('contains(t, "12")', True),
        ('contains(l, "b")', True),
        ('contains(l, "c")', False),
        ('contains(no, "c")', False),
        ('join(l, "-")', "a-b"),
        ("if(ok, 1, 2)", 1),
        ("if(no, 1, 2)", 2),
        ("if(n > 2, no, 2)", None),
        ("log(exp(n))", 3.0),
        ("log(0)", None),
        ("log(-1)", None),
        ("exp(1000)", None),
        ("sqrt(n + 1)", 2.0),
        ("sqrt(-1)", None),
        ("abs(-x)", 2.5),
        ("round(x)", 2),
        ("round(2.345, 1)", 2.3),
        ("abs(no)", None),
        ("min(no, n, x)", 2.5),
        ("max(n, 4)", 4),
        ("l[0] + l[-1]", "ab"),
        ("l[5]", None),
        ("[n] + [4, 5] == [3, 4, 5]", True),
        ('l == ["a", none, "b"]', True),
        ("l[n - 1]", "b"),
        ("l[-n]", "a"),
        ("l[n]", None),
        ("l[no]", None),
        ("[[1, 2], [n]][1][0]", 3),
        ("l[1:]", (None, "b")),
        ("l[:-1]", ("a", None)),
        ("l[n:] == []", True),
        ("l[0:no]", None),
        ('"Zoë 🙂 x"[2:5]', "ë 🙂"),
        ('"b" in l', True),
        ('"c" in l', False),
        ("none in l", True),
        ('"🙂" in "a🙂b"', True),
        ("2 in [1, 3]", False),
        ('lines("a\\r\\nb\\n\\nc")', ("a", "b", "", "c")),
        ('split("a, b,,c", ",")', ("a", " b", "", "c")),
        ('split("abc", "")', None),
        ('replace("aXbX", "X", "🙂")', "a🙂b🙂"),
        ('replace("ab", "", "x")', "ab"),
        ("sort([2.5, -1, 2])", (-1, 2, 2.5)),
        ("sort(l)", ("a", "b", None)),
        ("sum([1, none, 2.5])", 3.5),
        ("max([x, n])", 3),
        ("mean([1, 2])", 1.5),
        ("median([4, 1, 3, 2])", 2.5),
        ("quantile([1, 2, 3], 0.5)", 2.0),
        ("all([true, ok])", True),
        ("any([false])", False),
        ("sum([1, 2][5:])", 0),
        ("max([1, 2][5:])", None),
    ],
)
def test_functions_over_a_row(text: str, value: object) -> None:
    found = evaluate(expr(text), COLUMNS)
    assert found == value
    assert type(found) is type(value)


def test_values_that_grow_without_bound_end() -> None:
    columns: dict[str, Any] = {"t": "a" * MAX_CHARACTERS, "n": 2**1000, "l": (1,) * MAX_ITEMS}
    assert evaluate(expr("n * n"), columns) is None
    for text in ("t + t", "l + [2]", '"{t}{t}"', 'join([t, t], "")', 'replace(t, "a", "bb")'):
        with pytest.raises(TooLarge):
            evaluate(expr(text), columns)


Row = dict[str, Any]
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "x": st.none() | st.floats(-1e6, 1e6) | st.integers(-1000, 1000),
            "b": st.none() | st.booleans(),
            "g": st.sampled_from(["p", "q", None]),
        }
    ),
    max_size=12,
)


def reference(name: str, values: list[Any]) -> Any:
    """What an aggregate is of the values of a column, worked out another way."""
    some = [value for value in values if value is not None]
    match name:
        case "count":
            return len([value for value in some if value is not False])
        case "sum":
            return math.fsum(some)
        case "mean":
            return statistics.fmean(some) if some else None
        case "std":
            return statistics.pstdev(map(float, some)) if some else None
        case "min" | "max":
            return (min if name == "min" else max)(some) if some else None
        case "quantile":
            return float(np.quantile(some, 0.3)) if some else None
        case "median":
            return float(np.median(some)) if some else None
        case "any":
            return any(value is True for value in values)
        case "all":
            return all(value is True for value in values)
        case "list":
            return tuple(values)
    return values[0 if name == "first" else -1] if values else None


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-6)
    return bool(found == wanted)


@settings(max_examples=40)
@given(ROWS)
def test_aggregates_are_what_a_reference_says(rows: list[Row]) -> None:
    for name in (name for name in words.AGGREGATES if name not in words.OF_EACH):
        column = "b" if name in ("any", "all") else "x"
        of = f"{column}, 0.3" if AGGREGATES[name].takes_share else column
        over_all = reference(name, [row[column] for row in rows])
        assert same(evaluate_rows(expr(f"{name}({of})"), rows, {}), over_all), name
        each = evaluate_each(expr(f"{name}({of} per g)"), rows)
        for row, found in zip(rows, each, strict=True):
            group = [other[column] for other in rows if other["g"] == row["g"]]
            assert same(found, reference(name, group)), name


@settings(max_examples=40)
@given(ROWS)
def test_a_rank_is_the_place_in_the_order_of_keep(rows: list[Row]) -> None:
    """The greatest first, of equal ones the first, none last; alone and within each group."""
    numbers = evaluate_each(expr("number()"), rows)
    assert numbers == [*range(1, len(rows) + 1)]
    for per, key in (("", lambda row: None), (" per g", lambda row: row["g"])):
        ranks, places = (evaluate_each(expr(f"{call}{per})"), rows) for call in ("rank(x", "number("))
        for group in {key(row) for row in rows}:
            mine = [index for index, row in enumerate(rows) if key(row) == group]
            assert [places[index] for index in mine] == [*range(1, len(mine) + 1)]
            found = [index for _, index in sorted((ranks[index], index) for index in mine)]  # type: ignore[type-var]
            assert found == sorted(mine, key=lambda index: math.inf if (x := rows[index]["x"]) is None else -x)


@settings(max_examples=60)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.floats(0, 1))
def test_a_quantile_is_numpys_to_the_last_digit(numbers: list[float], share: float) -> None:
    rows = [{"x": number} for number in (*numbers, None)]
    found = evaluate_rows(expr("quantile(x, q)"), [{**row, "q": share} for row in rows], {})
    assert found == np.quantile(numbers, share)
    for wrong in (-0.1, 1.1, None):
        assert evaluate_rows(expr("quantile(x, q)"), [{**row, "q": wrong} for row in rows], {}) is None


@settings(max_examples=40)
@given(ROWS)
def test_aggregates_of_aggregates(rows: list[Row]) -> None:
    sizes = evaluate_each(expr("count(per g)"), rows)
    assert evaluate_rows(expr("max(count(per g))"), rows, {}) == max(sizes, default=None)  # type: ignore[type-var]
    shares = evaluate_each(expr("count(per g) / count()"), rows)
    assert shares == [size / len(rows) for size in sizes if isinstance(size, int)]
    spread = evaluate_rows(expr("sqrt(mean((x - mean(x)) * (x - mean(x))))"), rows, {})
    assert same(spread, evaluate_rows(expr("std(x)"), rows, {}))


def test_bools_count_as_numbers_and_the_order_of_rows_does_not_matter() -> None:
    rows = [{"b": True, "x": 1e16}, {"b": False, "x": 1.0}, {"b": True, "x": -1e16}]
    assert evaluate_rows(expr("sum(b)"), rows, {}) == 2
    assert evaluate_rows(expr("mean(b)"), rows, {}) == 2 / 3
    for order in (rows, rows[::-1], [rows[0], rows[2], rows[1]]):
        assert evaluate_rows(expr("sum(x)"), order, {}) == 1.0


def test_an_aggregate_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    aggregate = AGGREGATES["mean"]
    counted = type(aggregate)(
        aggregate.takes, aggregate.words, aggregate.gives, lambda values: calls.append(1) or aggregate.compute(values)
    )
    monkeypatch.setitem(AGGREGATES, "mean", counted)  # type: ignore[arg-type]
    rows = [{"x": number} for number in range(100)]
    assert evaluate_each(expr("x - mean(x)"), rows) == [number - 49.5 for number in range(100)]
    assert len(calls) == 1

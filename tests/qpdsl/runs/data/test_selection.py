"""Which rows are taken: `--where`, `--shuffle`, `--skip`, `--limit`, `--spread`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.errors import DataError, UsageError
from qpdsl.runs.data.chosen_records import RowCondition, shuffled, spread
from qpdsl.runs.data.rows import read_rows
from qpdsl.session.settings import DataSettings
from tests.qpdsl.runs.data.plans import PLAN
from tests.support.cli import Run
from tests.support.paths import ROOT

SHIPPED = ROOT / "programs" / "data" / "counting-500.jsonl"


def ids(**options: Any) -> list[str]:
    return [row.id for row in read_rows(SHIPPED, PLAN, {}, DataSettings(**options)).rows]


def test_options_apply_in_their_order() -> None:
    everything = ids()
    level2 = ids(where="level == 2")
    assert 0 < len(level2) < 500 and level2 == [id_ for id_ in everything if id_ in set(level2)]
    mixed = ids(where="level == 2", shuffle=1)
    assert sorted(mixed) == sorted(level2) and mixed != level2
    assert ids(where="level == 2", shuffle=1, skip=3, limit=5) == mixed[3:8]
    assert ids(limit=3) == everything[:3] and ids(skip=499) == everything[499:]


def test_a_seed_gives_the_same_order_everywhere() -> None:
    assert shuffled(range(8), 0) == [6, 4, 5, 2, 3, 1, 7, 0]
    assert shuffled(range(8), 1) == [7, 1, 3, 2, 0, 6, 4, 5]


@given(st.lists(st.integers(), max_size=30), st.integers())
def test_shuffling_loses_nothing(items: list[int], seed: int) -> None:
    assert sorted(shuffled(items, seed)) == sorted(items)


@given(st.lists(st.sampled_from([1, 2, "x", None]), max_size=40), st.integers(0, 50))
def test_spread_is_as_even_as_can_be(groups: list[Any], count: int) -> None:
    taken = spread(groups, count)
    assert len(taken) == min(count, len(groups)) and taken == sorted(set(taken))
    here, there = Counter(groups), Counter(groups[place] for place in taken)
    for group, size in here.items():
        # A group has fewer than another by two only where it has no more.
        assert there[group] == size or all(there[other] <= there[group] + 1 for other in here)
        first = [place for place, other in enumerate(groups) if other == group][: there[group]]
        assert [place for place in taken if groups[place] == group] == first


def test_problems_spread_over_levels() -> None:
    data = read_rows(SHIPPED, PLAN, {}, DataSettings(spread="level", limit=128))
    levels = Counter(row.fields["level"] for row in data.rows)
    assert sum(levels.values()) == 128 and max(levels.values()) - min(levels.values()) <= 1


@pytest.mark.parametrize(
    ("condition", "chosen"),
    [
        ("level >= 3", [1, 2]),
        ("level >= 3 and subject == 'Algebra'", [1]),
        ('subject == "Algebra" or subject == \'it"s\'', [0, 1, 2]),
        ("not (level > 1)", [0]),
        ("level == max(level)", [2]),
        ("subject matches /^Al/", [0, 1]),
        ("text matches /'b'/", [1]),
        ("meta.kind == 'x'", [1]),
        ("len(tags) > 1", [0]),
        ("text == '{level}'", [2]),
    ],
)
def test_conditions(condition: str, chosen: list[int]) -> None:
    records: list[dict[str, Any]] = [
        {"level": 1, "subject": "Algebra", "text": "a", "tags": ["a", "b"]},
        {"level": 3, "subject": "Algebra", "text": "'b'", "meta": {"kind": "x"}, "tags": []},
        {"level": 5, "subject": 'it"s', "text": "{level}"},
    ]
    found = RowCondition(condition).chosen(records)
    assert [place for place, taken in enumerate(found) if taken] == chosen


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("level >=", "`--where level >=`: expected an expression"),
        ("level > 1 | keep 3 by level", "must be one condition"),
        ("lvel > 1", "the data has no field `lvel`; did you mean `level`"),
        ("lenth(text) > 1", "there is no function `lenth`"),
        ("__import__('os')", "there is no function"),
        ("", "expected a condition"),
    ],
)
def test_what_is_no_condition(condition: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        RowCondition(condition).chosen([{"level": 1, "text": "a"}])
    assert message in caught.value.message


def test_a_condition_that_nothing_fulfils_says_what_there_is() -> None:
    with pytest.raises(DataError) as caught:
        ids(where="level > 99")
    assert caught.value.message == "counting-500: no row fulfils `--where level > 99`"
    assert caught.value.help == "`level` is a number, as 1"
    with pytest.raises(DataError) as caught:
        ids(where="1 == 2")
    assert caught.value.help == "it names no field; as in `level >= 3 and subject == 'Algebra'`"


def test_faults_of_rows_that_are_not_taken_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "d"
    path.write_text('{"problem": "a", "k": 1}\n{"problem": 3, "k": 2}\n{"problem": "c", "k": 1, "id": "1"}\n')
    assert [row.id for row in read_rows(path, PLAN, {}, DataSettings(where="k == 1", limit=1)).rows] == ["1"]
    with pytest.raises(DataError) as caught:
        read_rows(path, PLAN, {})
    assert caught.value.message.splitlines() == [
        f"{path}:2: `problem` takes text, not 3",
        f"{path}:3: the id `1` stands on line 1 already",
    ]


def test_the_command_line_takes_them(qpdsl: Run) -> None:
    ran = qpdsl("run", "greedy", "--input", "counting-500", "--limit", 3, "--where", "level == 1", "--no-greedy")
    assert ran.code == 0 and len(ran.out.splitlines()) == 3
    assert "note: 3 of 500 rows of" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--limit", 3], "`--limit` needs `--input`"),
        (["--map", "a=b"], "`--map` needs `--input`"),
        (["--input", "counting-500", "--spread", "level"], "`--spread` needs `--limit`"),
        (["--input", "counting-500", "--spread", "lvl", "--limit", 3], "no row has a field of this name"),
        (["--input", "counting-500", "--skip", 500], "`--skip 500` leaves none of the 500 rows"),
    ],
)
def test_options_that_do_not_go_together(qpdsl: Run, arguments: list[Any], message: str) -> None:
    ran = qpdsl("run", "greedy", *arguments)
    assert ran.code == 2 and message in ran.err

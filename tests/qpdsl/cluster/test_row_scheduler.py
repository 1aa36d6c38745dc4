"""Who gets which row: nothing is lost, nothing is done twice, whatever happens in whatever order."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpdsl.cluster.row_scheduler import MAX_LOSSES, RowScheduler


def drained(rows: RowScheduler, replica: str) -> list[int]:
    """All rows that a replica gets when it has each done before it asks for the next."""
    taken = []
    while (number := rows.next(replica)) is not None:
        taken.append(number)
        rows.done(number, replica)
    return taken


def test_one_replica_gets_rows_in_their_order() -> None:
    rows = RowScheduler(((number, None) for number in range(20)), 4)
    rows.join("a")
    assert drained(rows, "a") == list(range(20))
    assert rows.finished


def test_a_group_stays_with_the_replica_that_began_it() -> None:
    rows = RowScheduler([(number, "one" if number % 2 else "two") for number in range(12)], 12)
    rows.join("a")
    rows.join("b")
    first = {replica: [rows.next(replica) for _ in range(6)] for replica in "ab"}
    assert first == {"a": [0, 2, 4, 6, 8, 10], "b": [1, 3, 5, 7, 9, 11]}


def test_a_row_that_is_read_later_joins_its_group() -> None:
    rows = RowScheduler([(0, "one"), (1, "two"), (2, "one"), (3, "two")], 2)
    rows.join("a")
    rows.join("b")
    assert [rows.next("a"), rows.next("b"), rows.next("b"), rows.next("a")] == [0, 1, 3, 2]


def test_a_replica_without_rows_takes_the_back_half_of_the_longest_queue() -> None:
    rows = RowScheduler([(number, "one") for number in range(9)], 9)
    rows.join("a")
    assert rows.next("a") == 0
    rows.join("b")
    assert drained(rows, "b")[:4] == [5, 6, 7, 8]


def test_rows_of_a_lost_replica_run_again_first() -> None:
    rows = RowScheduler([(number, None) for number in range(6)], 6)
    rows.join("a")
    assert [rows.next("a"), rows.next("a")] == [0, 1]
    assert rows.leave("a").again == (0, 1)
    rows.join("b")
    assert drained(rows, "b") == [0, 1, 2, 3, 4, 5]


def test_an_outcome_counts_only_while_the_replica_has_the_row() -> None:
    rows = RowScheduler([(0, None)], 1)
    rows.join("a")
    rows.join("b")
    assert rows.next("a") == 0
    assert not rows.done(0, "b")
    rows.leave("a")
    assert not rows.done(0, "a")
    assert rows.next("b") == 0
    assert rows.done(0, "b")
    assert not rows.done(0, "b")
    assert rows.finished


def test_a_row_that_ends_its_replica_fails_alone() -> None:
    """The rows beside it are not blamed for what it does, as it runs alone before it fails."""
    rows = RowScheduler([(number, None) for number in range(8)], 8)
    failed: list[int] = []
    for attempt in range(100):
        replica = f"replica {attempt}"
        rows.join(replica)
        given = []
        while len(given) < 4 and (number := rows.next(replica)) is not None:
            given.append(number)
            rows.begun(number, replica)
        if 5 in given:
            failed += rows.leave(replica).failed
        else:
            assert all(rows.done(number, replica) for number in given)
            rows.leave(replica)
        if rows.finished:
            break
    assert failed == [5]
    assert rows.finished


def test_a_row_that_had_not_begun_is_not_blamed() -> None:
    rows = RowScheduler([(0, None)], 1)
    for attempt in range(2 * MAX_LOSSES):
        rows.join(str(attempt))
        assert rows.next(str(attempt)) == 0
        assert rows.leave(str(attempt)).failed == ()


def test_rows_are_read_no_further_ahead_than_asked() -> None:
    read = []

    def source() -> object:
        for number in range(1000):
            read.append(number)
            yield number, None

    rows = RowScheduler(source(), 10)  # type: ignore[arg-type]
    rows.join("a")
    rows.next("a")
    assert len(read) == 10


@settings(max_examples=80)
@given(
    affinities=st.lists(st.sampled_from([None, None, "x", "y", "z"]), max_size=40),
    ahead=st.integers(1, 50),
    seed=st.integers(0, 2**32),
)
def test_every_row_is_done_once(affinities: list[str | None], ahead: int, seed: int) -> None:
    """Replicas come, are lost, give back and finish rows at random; some rows end every replica that runs them."""
    chance = random.Random(seed)
    rows = RowScheduler(enumerate(affinities), ahead)
    deadly = {number for number in range(len(affinities)) if chance.random() < 0.1}
    held: dict[str, set[int]] = {}
    begun: dict[str, set[int]] = {}
    outcomes: Counter[int] = Counter()
    made = 0
    for _ in range(100_000):
        if rows.finished:
            break
        if len(held) < 3:
            made += 1
            rows.join(f"r{made}")
            held[f"r{made}"], begun[f"r{made}"] = set(), set()
        replica = chance.choice(sorted(held))
        own = held[replica]
        action = chance.random()
        if deadly & begun[replica] or action < 0.01:
            loss = rows.leave(replica)
            assert set(loss.again) | set(loss.failed) == own
            outcomes.update(loss.failed)
            del held[replica], begun[replica]
        elif action < 0.4 and (number := rows.next(replica)) is not None:
            assert number not in set().union(*held.values())
            own.add(number)
        elif action < 0.6 and own - begun[replica]:
            number = min(own - begun[replica])
            begun[replica].add(number)
            rows.begun(number, replica)
        elif action < 0.7 and own - begun[replica]:
            back = chance.sample(sorted(own - begun[replica]), 1)
            rows.gave_back(back, replica)
            own.difference_update(back)
        elif begun[replica]:
            number = chance.choice(sorted(begun[replica]))
            assert rows.done(number, replica)
            outcomes[number] += 1
            own.discard(number)
            begun[replica].discard(number)
        assert rows.given == sum(map(len, held.values()))
        assert all(rows.held(name) == len(numbers) for name, numbers in held.items())
    assert rows.finished
    assert outcomes == Counter(range(len(affinities)))


@pytest.mark.parametrize("ahead", [1, 7])
def test_no_rows(ahead: int) -> None:
    rows = RowScheduler([], ahead)
    assert rows.finished
    rows.join("a")
    assert rows.next("a") is None

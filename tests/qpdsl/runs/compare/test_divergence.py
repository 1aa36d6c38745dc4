"""Where two runs of a row part: the first sample that differs, in the order in which a program runs."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qpdsl.runs.compare.divergence import DrawnSample, divergence_of, first_divergence


def sample(path: tuple[int, ...], tokens: tuple[int, ...], **more: Any) -> DrawnSample:
    """A sample of the operator 1."""
    usual: dict[str, Any] = {"operator": "1", "rounds": (), "prompt": b"p"}
    return DrawnSample(path=path, tokens=tokens, **(usual | more))


def step(round: int, path: tuple[int, ...], tokens: tuple[int, ...], **more: Any) -> DrawnSample:
    """A sample in a loop."""
    return sample(path, tokens, operator="1.0", rounds=(round,), **more)


def test_the_first_token_that_differs_is_named() -> None:
    one = [sample((0,), (5, 6)), sample((1,), (5, 7, 2))]
    other = [sample((0,), (5, 6)), sample((1,), (5, 8, 2))]
    found = first_divergence(one, other)
    assert found is not None and (found.cause, found.path, found.place) == ("token", (1,), 1)
    assert (found.first, found.second) == (7, 8)
    assert first_divergence(one, one) is None


def test_a_sample_that_ends_before_the_other_parts_from_it_there() -> None:
    found = first_divergence([sample((0,), (5, 6))], [sample((0,), (5, 6, 7))])
    assert found is not None and (found.place, found.first, found.second) == (2, None, 7)


def test_rounds_go_before_paths_and_operators_in_a_loop_after_those_before_it() -> None:
    one = [step(1, (0, 0), (1,)), step(0, (1,), (2,)), sample((0,), (3,), operator="2")]
    other = [step(1, (0, 0), (9,)), step(0, (1,), (8,)), sample((0,), (7,), operator="2")]
    found = first_divergence(one, other)
    assert found is not None and found.rounds == (0,) and found.second == 8


def test_other_rows_that_go_on_after_equal_samples_are_a_choice() -> None:
    first = [step(0, (0,), (1,)), step(0, (1,), (2,))]
    found = first_divergence([*first, step(1, (0, 0), (3,))], [*first, step(1, (1, 0), (4,))])
    assert found is not None and (found.cause, found.rounds, found.path) == ("choice", (1,), (0,))


def test_in_a_search_a_token_goes_before_a_choice_as_depths_come_in_no_order() -> None:
    first, last = [step(0, (0,), (1,)), step(0, (1,), (2,))], [sample((0,), (5,), operator="2")]
    one = [*first, step(1, (0, 0), (3,)), step(2, (0, 0, 0), (4,)), *last]
    other = [*first, step(1, (0, 0), (3,)), step(1, (1, 0), (3,)), step(2, (0, 0, 0), (6,)), *last]
    found, searched = first_divergence(one, other), first_divergence(one, other, searches=["1"])
    assert found is not None and (found.cause, found.path) == ("choice", (1,))
    assert searched is not None and (searched.cause, searched.rounds, searched.second) == ("token", (2,), 6)
    chosen = first_divergence(one, [*other[:-2], *one[3:4], sample((0,), (6,), operator="2")], searches=["1"])
    assert chosen is not None and (chosen.cause, chosen.path) == ("choice", (1,))


def test_samples_that_one_side_gave_up_are_no_difference() -> None:
    one = [sample((0,), (1,)), sample((1,), (2,)), sample((2,), (3,))]
    assert first_divergence(one, one[:2]) is None


def test_behind_another_prompt_tokens_are_compared_all_the_same() -> None:
    one, other = [sample((0,), (1, 2), prompt=b"a")], [sample((0,), (1, 3), prompt=b"b")]
    found = first_divergence(one, other)
    assert found is not None and (found.cause, found.place) == ("prompt", 1)
    assert first_divergence(one, [sample((0,), (1, 2), prompt=b"b")]) is None


def test_a_thought_and_its_answer_are_two_samples_of_one_row() -> None:
    one = [sample((0,), (1, 2)), sample((0,), (3,), prompt=b"q")]
    found = first_divergence(one, [sample((0,), (1, 2)), sample((0,), (4,), prompt=b"q")])
    assert found is not None and (found.first, found.second) == (3, 4)


def test_a_row_is_followed_through_the_samples_that_it_was_made_of() -> None:
    one = [step(0, (0,), (1,)), step(0, (1,), (2,)), step(1, (1, 0), (3,))]
    other = [step(0, (0,), (9,)), step(0, (1,), (2,)), step(1, (1, 0), (4,))]
    found = divergence_of((1, 0), one, other)
    assert found is not None and (found.path, found.first, found.second) == ((1, 0), 3, 4)
    assert divergence_of((1,), one, other) is None
    dropped = divergence_of((1, 0), one, other[:2])
    assert dropped is not None and (dropped.cause, dropped.path) == ("choice", (1,))


TOKENS = st.lists(st.integers(0, 3), max_size=4).map(tuple)
ROWS = st.lists(TOKENS, min_size=1, max_size=4)


@given(ROWS, ROWS)
def test_it_is_the_same_from_both_sides_and_nothing_differs_before_it(one: list[Any], other: list[Any]) -> None:
    first, second = ([sample((place,), own) for place, own in enumerate(side)] for side in (one, other))
    found, back = first_divergence(first, second), first_divergence(second, first)
    shared = list(zip(one, other, strict=False))
    if found is None:
        assert back is None and all(a == b for a, b in shared)
        return
    assert back is not None and (back.path, back.place) == (found.path, found.place)
    assert (back.first, back.second) == (found.second, found.first) and found.first != found.second
    (place,) = found.path
    assert all(a == b for a, b in shared[:place])
    assert one[place][: found.place] == other[place][: found.place]

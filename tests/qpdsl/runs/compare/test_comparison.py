"""What a comparison finds, and what it does not: planted regressions and null changes, over many plantings."""

import numpy as np
import pytest

from qpdsl.errors import UsageError
from qpdsl.runs.compare.comparison import compare
from qpdsl.runs.compare.comparison_record import comparison_record
from qpdsl.runs.compare.comparison_text import verdict
from tests.support.compared_runs import RIGHT, kept, row, seeds, side, side_of

ROWS, POINTS = 500, 15


def planted(random: np.random.Generator, churn: int) -> tuple[list[bool], list[bool]]:
    """Verdicts of a run and of one that is 3 points worse; `churn` more problems flip, half of them each way."""
    before = random.random(ROWS) < 0.6
    after = before.copy()
    right, wrong = np.flatnonzero(before), np.flatnonzero(~before)
    after[random.choice(right, POINTS + churn // 2, replace=False)] = False
    after[random.choice(wrong, churn // 2, replace=False)] = True
    return before.tolist(), after.tolist()


@pytest.mark.parametrize(("churn", "is_found"), [(0, True), (10, True), (20, True), (40, False)])
def test_a_regression_of_three_points_at_500_rows(churn: int, is_found: bool) -> None:
    """With common random numbers few rows flip without a cause. Among many that do, 3 points are within chance."""
    for planting in range(10):
        before, after = planted(np.random.default_rng(planting), churn)
        said = verdict(compare(side(before), side(after)))
        assert said.kind == ("worse" if is_found else "unclear")
        assert "-3.0 points" in said.text


def test_what_could_have_been_seen_is_said() -> None:
    before, after = planted(np.random.default_rng(0), 40)
    assert verdict(compare(side(before), side(after))).text == (
        "no difference can be told: -3.0 points (-5.9 to -0.1), p = 0.058; over 500 problems, 5.0 points would be seen "
        "80% of the time"
    )


def test_a_null_change_is_rarely_called_one() -> None:
    """Two seeds of the same accuracy: each problem is as likely to be right in either."""
    random = np.random.default_rng(1)
    called = 0
    for _ in range(60):
        likely = random.beta(0.6, 0.6, ROWS)
        before, after = (random.random((2, ROWS)) < likely).tolist()
        called += verdict(compare(side(before), side(after))).kind in ("better", "worse")
    assert called <= 5


def test_equal_answers_are_equal_and_ungraded_ones_are_not_judged() -> None:
    one = side([True, False] * 10)
    assert verdict(compare(one, one)).text == "A and B give the same answer to all 20 problems"
    first, second = (
        side_of([kept([row(n, answer, correct=None, reference=None) for n in range(3)])]) for answer in ("1", "2")
    )
    found = compare(first, second)
    assert found.accuracy is None and found.other_answers == 3
    assert verdict(found).text == "answers to 3 of 3 problems differ, and nothing says which are right"


def test_flips_are_those_of_right_and_wrong_and_other_answers_are_counted_apart() -> None:
    first = side_of([kept([row(0, RIGHT), row(1, "1"), row(2, "2"), row(3, RIGHT)])])
    second = side_of([kept([row(0, "0"), row(1, RIGHT), row(2, "3"), row(3, RIGHT)])])
    found = compare(first, second)
    assert [pair[0].id for pair in found.gained] == ["row 1"] and [pair[0].id for pair in found.lost] == ["row 0"]
    assert found.other_answers == 1


def test_rows_that_one_side_could_not_grade_count_for_cost_alone() -> None:
    first = side_of([kept([row(0, RIGHT), row(1, "1", correct=None)])])
    second = side_of([kept([row(0, RIGHT), row(1, RIGHT)])])
    found = compare(first, second)
    assert found.accuracy is not None and found.accuracy.paired.pairs == 1
    assert {figure.paired.pairs for figure in found.costs} == {2}


def test_costs_are_compared_problem_by_problem() -> None:
    first = side_of([kept([row(n, RIGHT, tokens_out=100 + 90 * (n % 10), engine_seconds=1.0) for n in range(60)])])
    second = side_of([kept([row(n, RIGHT, tokens_out=102 + 90 * (n % 10)) for n in range(60)])])
    figures = {figure.name: figure for figure in compare(first, second).costs}
    # The second run did not measure its engine's seconds.
    assert figures.keys() == {"tokens out", "tokens in"}
    paired = figures["tokens out"].paired
    assert (paired.difference, paired.interval.low, paired.interval.high) == (2, 2, 2)
    assert paired.p_value < 0.001 and figures["tokens out"].change == pytest.approx(2 / 505)


def test_seeds_of_a_problem_are_one_observation() -> None:
    """Runs that are copies of each other add no certainty; runs that differ do."""
    before, after = planted(np.random.default_rng(3), 20)
    copies = compare(seeds([before] * 4), seeds([after] * 4))
    single = compare(side(before), side(after))
    assert copies.accuracy is not None and single.accuracy is not None
    assert copies.accuracy.paired.pairs == ROWS
    assert copies.accuracy.paired.p_value == pytest.approx(single.accuracy.paired.p_value, abs=0.02)
    random = np.random.default_rng(4)
    likely = random.beta(0.6, 0.6, ROWS)
    one, other = ([(random.random(ROWS) < share).tolist() for _ in range(6)] for share in (likely, likely - 0.03))
    found = compare(seeds(one), seeds(other)).accuracy
    alone = compare(side(one[0]), side(other[0])).accuracy
    assert found is not None and alone is not None
    width, wider = (figure.paired.interval.high - figure.paired.interval.low for figure in (found, alone))
    assert width < 0.7 * wider
    assert found.paired.is_significant() and found.paired.difference == pytest.approx(-0.03, abs=0.02)


def test_a_side_takes_other_seeds_and_nothing_else() -> None:
    rows = [row(0, RIGHT)]
    one = kept(rows, "one", fingerprint={"seed": "0", "plan": "optimized"})
    with pytest.raises(UsageError, match="have the same seed, 0"):
        side_of([one, kept(rows, "two")])
    with pytest.raises(UsageError, match=r"`two` is no other seed of `one`: it differs in the plan"):
        side_of([one, kept(rows, "two", seed=1, fingerprint={"seed": "1", "plan": "naive"})])


def test_a_problem_that_a_seed_lacks_is_left_out() -> None:
    runs = [
        kept([row(number, RIGHT) for number in numbers], f"run-{seed}", seed=seed, fingerprint={"seed": str(seed)})
        for seed, numbers in enumerate(((0, 1, 2), (2, 0)))
    ]
    assert [problem.id for problem in side_of(runs).problems] == ["row 0", "row 2"]


def test_groups_are_in_order_and_add_up() -> None:
    before, after = planted(np.random.default_rng(5), 20)
    found = compare(side(before), side(after))
    groups = found.by_group("level")
    assert [group.value for group in groups] == [0, 1, 2, 3, 4]
    assert sum(group.accuracy.paired.gained for group in groups) == len(found.gained) == 10
    with pytest.raises(UsageError, match="no graded row has a short field `subject`") as raised:
        found.by_group("subject")
    assert raised.value.help == "the rows have `level`"


def test_the_record_has_every_flip_unless_fewer_are_asked_for() -> None:
    before, after = planted(np.random.default_rng(6), 4)
    found = compare(side(before, "one"), side(after, "two"))
    record = comparison_record(found)
    assert (len(record["gained"]), len(record["lost"])) == (2, 17) == tuple(record["flips"].values())[:2]
    assert record["lost"][0].keys() == {"id", "reference", "first", "second"}
    assert record["accuracy"]["difference"] == -0.03 and record["verdict"]["kind"] == "worse"
    assert comparison_record(found, rows=1)["lost"] == record["lost"][:1]

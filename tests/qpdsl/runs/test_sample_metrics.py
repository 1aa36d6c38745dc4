"""What samples come to at every number of them, over problems."""

import pytest

from qpdsl.runs.answer_metrics import SampledAnswer, accuracies, sampled_answers

UNSCORED = {"avg", "pass", "pass^", "cons"}
ALL = UNSCORED | {"best", "weighted"}


def test_every_k_has_its_figures() -> None:
    right, wrong = SampledAnswer("a", True, 0.9), SampledAnswer("b", False, 0.1)
    problems = [[right, wrong, wrong, right, wrong, wrong], [wrong] * 6]
    found = {(own.metric, own.k): own.accuracy for own in accuracies(problems)}
    assert {k for _, k in found} == {1, 2, 4, 6}
    assert [found[name, 1] for name in ALL] == pytest.approx([1 / 6] * 6)
    assert [found["avg", k] for k in (2, 4, 6)] == pytest.approx([1 / 6] * 3)
    assert found["pass", 6] == found["best", 6] == found["weighted", 6] == 0.5 and found["cons", 6] == 0.0
    # Of 15 pairs one is right twice, and a tie of the other 8 with a right one goes either way.
    assert found["cons", 2] == pytest.approx((1 + 8 / 2) / 15 / 2) and found["pass^", 2] == pytest.approx(1 / 30)
    assert found["best", 2] == found["pass", 2] == pytest.approx(9 / 15 / 2)
    for own in accuracies(problems):
        assert own.accuracy in own.interval


def test_without_scores_nothing_is_said_of_the_best() -> None:
    problems = [[SampledAnswer("a", True), SampledAnswer(None, False)]]
    assert {own.metric for own in accuracies(problems)} == UNSCORED
    assert accuracies([[], []]) == [] and accuracies([]) == []


def test_a_problem_without_samples_is_wrong() -> None:
    right = SampledAnswer("a", True, 0.5)
    found = accuracies([[right] * 2, [], [right] * 3])
    assert {own.k for own in found} == {1, 2} and {own.metric for own in found} == ALL
    assert [own.accuracy for own in found] == pytest.approx([2 / 3] * 12)


def test_a_score_below_zero_is_no_weight() -> None:
    problems = [[SampledAnswer("a", True, -0.5), SampledAnswer("b", False, -2.0)]]
    assert {own.metric for own in accuracies(problems)} == ALL - {"weighted"}


def test_answers_are_one_where_the_vote_takes_them_for_one() -> None:
    given = [("5", 0, False), ("12", 1, True), ("12.0", 1, True)]
    candidates = [{"answer": a, "ballot": ballot, "correct": right, "score": None} for a, ballot, right in given]
    found, apart = (
        {(own.metric, own.k): own.accuracy for own in accuracies([sampled_answers(own)])}
        for own in (candidates, [{**candidate, "ballot": None} for candidate in candidates])
    )
    assert found["cons", 3] == 1.0 and apart["cons", 3] == pytest.approx(2 / 3)


def test_candidates_of_a_run_are_samples() -> None:
    candidates = [{"answer": 4, "correct": True, "score": 0.5}, {"answer": None, "correct": None, "score": None}]
    assert sampled_answers(candidates) == [SampledAnswer("4", True, 0.5), SampledAnswer(None, False)]

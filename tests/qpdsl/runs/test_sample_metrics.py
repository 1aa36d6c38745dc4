import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.runs.answer_metrics import SampledAnswer, accuracies, best, majority, pass_at, sampled_answers, weighted

SAMPLES = st.lists(
    st.tuples(st.sampled_from([None, "a", "b", "c"]), st.sampled_from([None, 0.0, 0.25, 0.5, 1.0])).map(
        lambda pair: SampledAnswer(pair[0], pair[0] == "a", pair[1])
    ),
    min_size=1,
    max_size=9,
)


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_sets_with_a_right_sample(n: int, data: st.DataObject) -> None:
    correct, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    sets = list(combinations([True] * correct + [False] * (n - correct), k))
    assert pass_at(n, correct, k) == pytest.approx(sum(map(any, sets)) / len(sets))


def test_pass_at_k_of_many_samples_stays_a_probability() -> None:
    assert pass_at(1000, 10, 100) == pytest.approx(1 - math.comb(990, 100) / math.comb(1000, 100))
    for n, correct, k in ((4, 5, 1), (4, 2, 5), (4, 2, 0)):
        with pytest.raises(ValueError, match="samples of which"):
            pass_at(n, correct, k)


# The first example loads torch.
@given(SAMPLES)
def test_choices_are_those_of_the_language(samples: list[SampledAnswer]) -> None:
    answers = [sample.answer for sample in samples if sample.answer is not None]
    first = {answer: answers.index(answer) for answer in answers}
    assert majority(samples) is bool(first and min(first, key=lambda a: (-answers.count(a), first[a])) == "a")
    # A sample without a score has no vote.
    votes = [sample for sample in samples if sample.answer is not None and sample.score is not None]
    sums = {vote.answer: sum(s.score or 0.0 for s in votes if s.answer == vote.answer) for vote in votes}
    assert weighted(samples) is bool(sums and max(sums, key=lambda a: sums[a]) == "a")
    scores = [-1.0 if sample.score is None else sample.score for sample in samples]
    assert best(samples) is samples[scores.index(max(scores))].correct


def test_every_k_has_its_figures() -> None:
    right, wrong = SampledAnswer("a", True, 0.9), SampledAnswer("b", False, 0.1)
    problems = [[right, wrong, wrong, right, wrong, wrong], [wrong] * 6]
    found = {(own.metric, own.k): own.accuracy for own in accuracies(problems)}
    assert {k for _, k in found} == {1, 2, 4, 6}
    assert [found[name, 1] for name in ("pass", "maj", "best")] == pytest.approx([1 / 6] * 3)
    assert found["pass", 6] == found["best", 6] == found["weighted", 6] == 0.5 and found["maj", 6] == 0.0
    # The pairs are (right, wrong), (wrong, right), (wrong, wrong): a tie goes to the answer that was seen first.
    assert found["maj", 2] == pytest.approx(1 / 6) and found["best", 2] == pytest.approx(2 / 6)
    for own in accuracies(problems):
        assert own.accuracy in own.interval


def test_without_scores_nothing_is_said_of_the_best() -> None:
    problems = [[SampledAnswer("a", True), SampledAnswer(None, False)]]
    assert {own.metric for own in accuracies(problems)} == {"pass", "maj"}
    assert accuracies([[], []]) == [] and accuracies([]) == []


def test_a_problem_without_samples_is_wrong() -> None:
    right = SampledAnswer("a", True, 0.5)
    found = accuracies([[right] * 2, [], [right] * 3])
    assert {own.k for own in found} == {1, 2} and {own.metric for own in found} == {"pass", "maj", "best", "weighted"}
    assert [own.accuracy for own in found] == pytest.approx([2 / 3] * 8)


def test_a_score_below_zero_is_no_weight() -> None:
    problems = [[SampledAnswer("a", True, -0.5), SampledAnswer("b", False, -2.0)]]
    assert {own.metric for own in accuracies(problems)} == {"pass", "maj", "best"}


def test_answers_are_one_where_the_vote_takes_them_for_one() -> None:
    given = [("5", 0, False), ("12", 1, True), ("12.0", 1, True)]
    candidates = [{"answer": a, "ballot": ballot, "correct": right, "score": None} for a, ballot, right in given]
    assert majority(sampled_answers(candidates))
    assert not majority(sampled_answers([{**candidate, "ballot": None} for candidate in candidates]))


def test_candidates_of_a_run_are_samples() -> None:
    candidates = [{"answer": 4, "correct": True, "score": 0.5}, {"answer": None, "correct": None, "score": None}]
    assert sampled_answers(candidates) == [SampledAnswer("4", True, 0.5), SampledAnswer(None, False)]

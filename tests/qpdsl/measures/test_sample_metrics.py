import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.measures.sample_metrics import SampledAnswer, accuracies, best, majority, pass_at, sampled_answers, weighted

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


@given(SAMPLES)
def test_choices_are_those_of_the_language(samples: list[SampledAnswer]) -> None:
    answers = [sample.answer for sample in samples if sample.answer is not None]
    first = {answer: answers.index(answer) for answer in answers}
    sums = {answer: sum(s.score or 0.0 for s in samples if s.answer == answer) for answer in first}
    assert majority(samples) is bool(first and min(first, key=lambda a: (-answers.count(a), first[a])) == "a")
    assert weighted(samples) is bool(first and min(first, key=lambda a: (-sums[a], first[a])) == "a")
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
    assert accuracies([[], [SampledAnswer("a", True)]]) == [] and accuracies([]) == []


def test_candidates_of_a_run_are_samples() -> None:
    candidates = [{"answer": 4, "correct": True, "score": 0.5}, {"answer": None, "correct": None, "score": None}]
    assert sampled_answers(candidates) == [SampledAnswer("4", True, 0.5), SampledAnswer(None, False)]

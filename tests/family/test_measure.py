"""Measuring the family: how answers are chosen, agreement, the schema's mask."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer

from family.measure.agreement import agreement, confidence, last_layer, margin, middle_layer
from family.measure.family_figures import load
from family.measure.record_accuracy import record_accuracy
from family.measure.search_accuracy import (
    SampledSolution,
    SearchOutcomes,
    beam_search,
    best,
    decode,
    majority,
    method_accuracies,
    weighted,
)
from family.measure.verifier_accuracy import judgement
from family.tasks.counting import evaluation_problems
from family.tasks.records import SCHEMAS, evaluation_notes
from family.training.transformers_sampling import step_scores
from qpdsl import zoo

pytestmark = pytest.mark.unshipped
TOKENIZER = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))


def sampled(*pairs: tuple[str | None, float]) -> list[SampledSolution]:
    return [SampledSolution("", answer, 1, score) for answer, score in pairs]


def test_how_an_answer_is_chosen() -> None:
    samples = sampled(("1", 0.9), ("2", 0.5), ("2", 0.3), ("2", 0.05), (None, 0.95))
    assert majority(samples) == "2"
    assert best(samples) is None
    assert weighted(samples) == "1"
    assert majority(sampled((None, 1.0))) is None
    assert weighted(sampled(("3", 0.5), ("4", 0.5))) == "3"


def test_methods_choose_among_the_first_samples_of_the_shipped_models() -> None:
    problems = evaluation_problems()[:4]
    samples, greedy = decode("zoo/counting", problems)
    beam = beam_search("zoo/counting", "zoo/counting-prm", problems)
    accuracies = {
        (accuracy.method.partition(",")[0], accuracy.n): accuracy
        for accuracy in method_accuracies(SearchOutcomes(problems, samples, greedy, beam))
    }
    at_one = [
        accuracies[method, 1].right for method in ("self-consistency", "best-of-N", "weighted best-of-N", "pass@N")
    ]
    assert len(set(at_one)) == 1
    assert accuracies["pass@N", 64].right >= accuracies["best-of-N", 64].right
    assert accuracies["pass@N", 4].tokens < accuracies["pass@N", 16].tokens
    assert set(accuracies["greedy", 1].by_level) == {problem.level for problem in problems}
    assert accuracies["beam search", 16].tokens > accuracies["greedy", 1].tokens


def test_right_solutions_are_judged_right_and_bins_hold_every_step() -> None:
    problems = evaluation_problems()[:20]
    model = load(zoo.path("zoo/counting-prm"))
    scores = step_scores(model, TOKENIZER, [(problem.text, problem.solution) for problem in problems])
    verdict = judgement(
        problems, [[problem.solution] for problem in problems], [[solution_scores] for solution_scores in scores]
    )
    assert verdict.steps == sum(len(problem.steps) for problem in problems) == sum(bin_.steps for bin_ in verdict.bins)
    assert verdict.accuracy == verdict.accuracy_right > 0.8


def test_a_model_agrees_with_itself_and_its_middle_layer_most_where_it_is_sure() -> None:
    model = load(zoo.path("zoo/counting"))
    written = [(problem.text, problem.solution) for problem in evaluation_problems()[:20]]
    self_agreement = agreement(last_layer(model), model, TOKENIZER, written, confidence)
    assert self_agreement.same == 1.0
    assert self_agreement.acceptance == pytest.approx(1.0, abs=1e-5)
    middle = agreement(middle_layer(model), model, TOKENIZER, written, margin)
    assert middle.positions == self_agreement.positions
    assert middle.acceptance < self_agreement.acceptance
    assert middle.bands[-1].agree > middle.bands[0].agree
    assert sum(band.share for band in middle.bands) == pytest.approx(1.0, abs=1e-5)


def test_the_margin_is_between_the_two_likeliest() -> None:
    assert margin(torch.tensor([[0.2, 0.7, 0.1]])).item() == pytest.approx(0.5)


def test_records_are_extracted_and_compared_field_by_field() -> None:
    accuracy = record_accuracy("zoo/counting", evaluation_notes()[:6])
    assert accuracy.notes == 6
    assert 0.0 < accuracy.constrained <= 1.0
    assert set(accuracy.by_kind) == set(SCHEMAS)

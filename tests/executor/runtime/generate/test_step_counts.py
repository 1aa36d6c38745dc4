"""How the tokens of samples are counted: buckets of allowed ids, and what n-grams would have drafted."""

from __future__ import annotations

from collections import Counter

from qpdsl.executor.requests.request import Sample, StepCounts
from qpdsl.executor.runtime.generate.sampling import bucket, count_steps, count_undrafted
from qpdsl.planner.cost.run_figures import OperatorFigures
from qpdsl.planner.plan.decode_plan import DecodePlan


def test_few_allowed_ids_are_counted_as_they_are_and_many_nearly() -> None:
    assert [bucket(ids) for ids in range(1, 32)] == list(range(1, 32))
    assert all(0 <= ids - bucket(ids) < 0.0625 * ids for ids in range(1, 300_000, 37))
    assert len({bucket(ids) for ids in range(1, 262_145)}) < 300


def test_median_and_tail_come_from_the_buckets() -> None:
    counts: Counter[str] = Counter()
    steps = StepCounts(20, 20, 5, allowed=(1,) * 12 + (7,) * 7 + (90_000,))
    count_steps(counts, [Sample((1,), "eos", 0.0, 0, steps=steps)], DecodePlan(constraint="jump"))
    figures = OperatorFigures(counts=counts)
    assert (figures.allowed(0.5), figures.allowed(0.95), figures.count("forced")) == (1, 7, 5)
    assert figures.allowed(1.0) == bucket(90_000)
    assert OperatorFigures().allowed(0.5) is None


def test_only_parts_that_a_plan_has_are_counted() -> None:
    counts: Counter[str] = Counter()
    steps = StepCounts(6, 2, drafted=5, accepted=4)
    count_steps(counts, [Sample((1,), "eos", 0.0, 0, steps=steps)], DecodePlan())
    assert set(counts) == {"draws", "rounds"}
    exits: Counter[str] = Counter()
    left = StepCounts(6, 6, exits=4, refined=2, late=3, skipped=8)
    count_steps(exits, [Sample((1,), "eos", 0.0, 0, steps=left)], DecodePlan(head="deferred"))
    assert dict(exits) == {"draws": 6, "rounds": 6, "exits": 4, "refined": 2, "late": 3, "skipped": 8}
    count_steps(counts, [Sample((1,), "eos", 0.0, 0, steps=steps)], DecodePlan(draft="ngram"))
    assert (counts["drafted"], counts["accepted"], counts["ngram_rounds"], counts["ngram_draws"]) == (5, 4, 2, 6)


def test_text_that_repeats_would_take_few_rounds_and_other_text_one_a_token() -> None:
    again: Counter[str] = Counter()
    count_undrafted(again, (9, 8), (1, 2, 3, 4) * 8)
    assert again["would_draws"] == 32 and again["would_rounds"] < 16 and again["would_drafted"] > 16
    other: Counter[str] = Counter()
    count_undrafted(other, (9, 8), tuple(range(10, 42)))
    assert (other["would_rounds"], other["would_drafted"]) == (32, 0)

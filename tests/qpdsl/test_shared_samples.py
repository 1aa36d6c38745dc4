"""Sessions that share samples: every shipped program and idiom gives what a session without gives."""

from __future__ import annotations

from typing import Any

import pytest

from qpdsl.arguments import ArgumentError
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.session.session import Session
from tests.support.shipped_programs import Case, cases, session, together


@pytest.fixture(scope="module")
def every() -> list[Case]:
    return list(cases())


@pytest.fixture(scope="module")
def expected(every: list[Case]) -> list[InstanceResult]:
    """What a session without shared samples gives."""
    return together(session(), every)


def assert_same(cases: list[Case], expected: list[InstanceResult], results: list[InstanceResult]) -> None:
    for case, before, after in zip(cases, expected, results, strict=True):
        for name in ("value", "error", "score", "rows", "support"):
            assert getattr(after, name) == getattr(before, name), (case.name, name)
        # Of samples that were given up, how many tokens there were depends on the clock.
        if not (before.counts.get("given_up") or after.counts.get("given_up")):
            for name in ("prompt_tokens", "sampled_tokens", "near_ties"):
                assert getattr(after, name) == getattr(before, name), (case.name, name)


def test_programs_after_one_another(every: list[Case], expected: list[InstanceResult]) -> None:
    sharing = session(share_samples=True)
    results = [together(sharing, [case])[0] for case in every]
    assert_same(every, expected, results)
    assert sharing.sample_memory is not None
    totals = sharing.sample_memory.totals
    assert totals.saved_tokens > 0.2 * totals.tokens
    assert sum(result.counts.get("saved_tokens", 0) for result in results) <= totals.saved_tokens
    # Once more, backwards: what can be shared is.
    before, asked = totals.saved_tokens, totals.tokens
    again = together(sharing, every[::-1])
    assert_same(every[::-1], expected[::-1], again)
    assert totals.saved_tokens - before == totals.tokens - asked


def test_programs_side_by_side(every: list[Case], expected: list[InstanceResult]) -> None:
    sharing = session(share_samples=True)
    backwards = every[::-1]
    assert_same(backwards, expected[::-1], together(sharing, backwards))
    assert sharing.sample_memory is not None
    assert sharing.sample_memory.totals.shared_samples > 50
    assert sharing.sample_memory.under_way == {}


def test_a_seed_shares_greedy_decoding_alone(every: list[Case]) -> None:
    sharing = session(share_samples=True)
    assert sharing.sample_memory is not None
    sampled = [case for case in every if "best_of_n" in case.name]
    greedy = [case for case in every if case.name.startswith("programs/greedy")]
    together(sharing, sampled + greedy)
    before = sharing.sample_memory.totals.shared_samples
    together(sharing, sampled[:1], seed=1)
    assert sharing.sample_memory.totals.shared_samples == before
    together(sharing, greedy, seed=1)
    assert sharing.sample_memory.totals.shared_samples == before + 1


def test_what_was_drawn_can_be_forgotten(every: list[Case]) -> None:
    sharing, case = session(share_samples=True), every[:1]
    assert sharing.sample_memory is not None
    together(sharing, case)
    assert sharing.sample_memory.bytes > 0
    sharing.forget_samples()
    assert sharing.sample_memory.bytes == 0
    assert not together(sharing, case)[0].counts.get("shared_samples")


@pytest.mark.parametrize(
    "given", [{"dtype": "bfloat16"}, {"device": "cuda"}, {"dtype": "float16", "device": "cuda:1"}], ids=str
)
def test_samples_that_depend_on_the_batch_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="`share_samples` needs samples that are the same in any batch"):
        Session(share_samples=True, **given)


def test_other_sessions_remember_nothing() -> None:
    plain = Session()
    assert plain.sample_memory is None
    plain.forget_samples()

"""What followed the last tokens before is proposed: from the sample, its prompt, its siblings, a corpus."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpdsl.executor.engine.draft.ngram import History, NGramDrafter
from qpdsl.executor.engine.memory.sequence import Proposal, Sequence
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from qpdsl.executor.requests.ticket import Ticket
from tests.support.executor.models import engine_of, paged, served


def sample_of(prompt: tuple[int, ...], *drawn: int, cached: bool = True) -> Sequence:
    request = GenerateRequest(prompt, (0,), SamplingParams(0), 100, cached=cached)
    sequence = Sequence.of(Ticket(request, lambda ticket: None), request)
    sequence.tokens += drawn
    return sequence


def proposed(drafter: NGramDrafter, sample: Sequence, length: int = 4) -> Proposal | None:
    (proposal,) = drafter.propose([sample], [length])
    return proposal


def test_the_prompt_is_looked_up_and_the_longest_match_wins() -> None:
    drafter = NGramDrafter(Drafting("ngram"))
    sample = sample_of((1, 2, 3, 10, 11, 12, 13, 9, 2, 3, 20, 21), 5, 1, 2, 3)
    assert proposed(drafter, sample) == Proposal((10, 11, 12, 13))
    sample.tokens += [7, 9, 2, 3]
    assert proposed(drafter, sample) == Proposal((20, 21, 5, 1))
    sample.tokens += [40, 41]
    assert proposed(drafter, sample) is None


def test_of_equal_matches_the_latest_is_taken_and_a_loop_goes_on() -> None:
    drafter = NGramDrafter(Drafting("ngram"))
    sample = sample_of((1,), 5, 6, 7, 5, 6, 8, 5, 6)
    assert proposed(drafter, sample, 2) == Proposal((8, 5))
    loop = sample_of((9,), 4, 5, 4, 5)
    assert proposed(drafter, loop, 6) == Proposal((4, 5, 4, 5, 4, 5))


def test_siblings_are_looked_up_unless_nothing_is_to_be_shared() -> None:
    for cached in (True, False):
        drafter = NGramDrafter(Drafting("ngram"))
        first = sample_of((1, 2), 30, 31, 32, 33, cached=cached)
        proposed(drafter, first)
        drafter.forget(first)
        found = proposed(drafter, sample_of((1, 2), 8, 30, 31, cached=cached))
        assert found == (Proposal((32, 33)) if cached else None)


def test_a_corpus_is_looked_up_last() -> None:
    drafter = NGramDrafter(Drafting("ngram", corpus=((1, 2, 60, 61), (3, 4, 62, 63))))
    assert proposed(drafter, sample_of((5,), 3, 4)) == Proposal((62, 63))
    assert proposed(drafter, sample_of((1, 2, 70), 1, 2)) == Proposal((70, 1, 2, 70))


def test_branches_make_a_tree_of_several_continuations() -> None:
    drafter = NGramDrafter(Drafting("ngram", length=2, branches=2))
    sample = sample_of((1,), 5, 6, 20, 21, 5, 6, 30, 31, 5, 6)
    assert proposed(drafter, sample, 2) == Proposal((30, 31, 20, 21), (-1, 0, -1, 2))


def test_an_index_forgets_what_is_old_and_keeps_the_latest_places() -> None:
    history = History()
    text = list(range(60_000))
    for start in range(0, len(text), 1000):
        history.add(text, start, start + 1000)
    assert not history.matches([5, 6]) and history.matches([59_000, 59_001])[0].end == 59_002
    many = [1, 2, 3] * 50
    history.add(many, 1, len(many) - 1)
    ends = [match.end for match in history.matches([1, 2])]
    assert ends == sorted(ends, reverse=True) and len(ends) < 10


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_that_was_seen_is_accepted_whole(temperature: float) -> None:
    engine = engine_of(paged("llama"))
    request = GenerateRequest(tuple(range(1, 30)), (4,), SamplingParams(temperature), 60)
    ((plain,),) = served(engine, (request,))
    corpus = ((*request.prompt, *plain.tokens),)
    ((drafted,),) = served(engine, (replace(request, draft=Drafting("ngram", length=8, corpus=corpus, fixed=True)),))
    assert drafted == plain
    steps = drafted.steps
    assert steps.accepted == steps.drafted > 40 and steps.rounds <= 9
    assert steps.draws == len(plain.tokens) == steps.rounds + steps.accepted
    assert len(steps.written) == steps.accepted and {writer for _, writer in steps.written} == {"drafted"}


def test_texts_of_rows_beside_it_help_a_sample() -> None:
    engine = engine_of(paged("llama"))
    drafting = Drafting("ngram", length=8, fixed=True)
    request = GenerateRequest(tuple(range(1, 30)), (4,), SamplingParams(0), 60, draft=drafting)
    results: list[Sample] = [served(engine, (request,))[0][0] for _ in range(2)]
    assert results[0] == results[1]
    assert results[1].steps.rounds < results[0].steps.rounds and results[1].steps.accepted > 40

"""What scores are worth, how votes went, where time went: figures against their plain definitions."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.executor.events.events import EngineFigures, EngineStepped, Selected, ServerReported
from qpdsl.tui.screens.verifier import quality_lines
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.state.search import SearchTree
from qpdsl.tui.state.time_spent import MemoryNeed, TimeSpent
from qpdsl.tui.state.verdict import last_vote
from qpdsl.tui.state.verifier import GradedAnswer, qualities_of, wider_cuts, widths
from qpdsl.tui.widgets.palette import NO_COLOURS

ANSWERS = st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.sampled_from((0.0, 0.25, 0.5, 1.0))), min_size=1)


def graded(answers: list[tuple[str, bool, float]]) -> list[GradedAnswer]:
    return [
        GradedAnswer(row, ((), (place,)), right, (("score", score),), taken=False)
        for place, (row, right, score) in enumerate(answers)
    ]


@given(ANSWERS)
def test_auc_and_pairs_are_those_of_all_pairs(answers: list[tuple[str, bool, float]]) -> None:
    (found,) = qualities_of(graded(answers))
    rights = [(row, score) for row, right, score in answers if right]
    wrongs = [(row, score) for row, right, score in answers if not right]
    pairs = [(good, bad) for good in rights for bad in wrongs]
    if pairs:
        won = sum((good[1] > bad[1]) + (good[1] == bad[1]) / 2 for good, bad in pairs)
        assert found.auc == pytest.approx(won / len(pairs))
    else:
        assert found.auc is None
    own = [(good[1], bad[1]) for good, bad in pairs if good[0] == bad[0]]
    assert found.pairs == len(own)
    assert (found.ranked, found.tied) == (sum(a > b for a, b in own), sum(a == b for a, b in own))
    assert sum(one.answers for one in found.bins) == len(answers)
    misled = {row for row in "ab" if (mine := [g for r, g in rights if r == row]) and any(
        bad > max(mine) for r, bad in wrongs if r == row
    )}  # fmt: skip
    assert {one.row for one in found.misled} == misled


@given(st.lists(st.booleans(), min_size=1, max_size=9))
def test_pass_at_k_is_the_mean_over_all_sets(rights: list[bool]) -> None:
    for one in widths([graded([("a", right, 0.5) for right in rights])]):
        sets = list(combinations(rights, one.samples))
        assert one.passed == pytest.approx(sum(map(any, sets)) / len(sets))


def test_what_another_strategy_had_tried_before_is_no_sample() -> None:
    """Two tried it greedily, and a row went on with four samples, of which one is right."""
    tried = [GradedAnswer(row, (("way 1",), (0,)), False, (), taken=True) for row in "ab"]
    sampled = [GradedAnswer("a", (("way 2",), (place,)), place == 1, (), taken=place == 1) for place in range(4)]
    assert [(one.samples, one.passed) for one in widths([[tried[0], *sampled], tried[1:]])] == [
        (1, 1 / 8), (2, 1 / 4), (4, 1 / 2),
    ]  # fmt: skip


def test_what_a_verifier_read_is_told_of_all_answers() -> None:
    quality = qualities_of(graded([("a", False, 0.5)]))[0]
    lines = [line.plain for line in quality_lines(quality, 30, "score prm", NO_COLOURS)]
    assert lines[0] == "verifier      score by score prm  it has read 1 of 30 answers to the end; of these 0% right"
    assert lines[1] == "AUC           unknown: the one answer with a score is wrong"
    assert next(quality_lines(quality, 1, "", NO_COLOURS)).plain.endswith("  1 answer, 0% right")


def test_a_wider_cut_keeps_all_that_stand_before_it() -> None:
    assert wider_cuts([5, 3, 5, 9]) == [(3, 1), (5, 3), (9, 4)]


@given(st.lists(st.sampled_from(("1", "2", "3", None)), min_size=1, max_size=12))
def test_a_vote_is_decided_where_no_later_answers_could_change_it(votes: list[str | None]) -> None:
    """In the order of the samples, whatever order the event has."""
    totals = {vote: votes.count(vote) for vote in votes if vote is not None}
    winner = max(totals, key=lambda vote: totals[vote], default=None)
    order = sorted(range(len(votes)), key=lambda place: votes[place] != winner)
    tree = SearchTree()
    paths = tuple((place,) for place in order)
    keys = tuple(votes[place] for place in order)
    tree.selected(Selected(instance="a", operator="0", kept=paths[:1], dropped=paths[1:], keys=keys), "Vote")
    vote = last_vote(tree)
    assert vote is not None and vote.rows == len(votes)

    def is_open(seen: int) -> bool:
        counts = sorted((votes[:seen].count(one) for one in ("1", "2", "3")), reverse=True)
        return counts[0] - counts[1] <= len(votes) - seen

    assert all(is_open(seen) for seen in range(1, vote.decided))
    assert vote.decided == len(votes) or not is_open(vote.decided)


def step(at: float, seconds: float, *, prefill: int = 0, decode: int = 10, model: str = "m") -> EngineStepped:
    return EngineStepped(at=at, report=EngineFigures(model, prefill, decode, 0, 1, 9, 0, {"seconds": seconds}))


def test_each_second_counts_once() -> None:
    spent = TimeSpent()
    spent.begin(0.0)
    spent.step(step(2.0, 1.0, prefill=10, decode=30), judges=False, rows=0)
    # It overlaps the one before by half.
    spent.step(step(2.5, 1.0, prefill=9, decode=0), judges=True, rows=1)
    spent.asked(3.0, 3.5)
    spent.asked(3.5, 4.0)
    spent.step(step(5.0, 0.5), judges=False, rows=1)
    shares = spent.shares(8.0, 0)
    whole = {"idle": 1.0 + 3.0, "prefill": 0.25, "decode": 0.75 + 0.5, "verifier": 0.5, "server": 1.0, "Python": 1.0}
    assert {name: share * 8 for name, share in shares.items()} == pytest.approx(whole)


def test_a_run_on_a_server_alone_waits_for_it() -> None:
    state = RunState()

    def report(at: float, in_flight: int) -> ServerReported:
        how = {"limit": 8, "queued": 0, "requests": 1, "retries": 0, "replayed": 0, "sampled_tokens": 0}
        return ServerReported(at=at, model="s", in_flight=in_flight, **how)  # type: ignore[arg-type]

    state.time.begin(0.0)
    for event in (report(1.0, 4), report(2.0, 4), report(4.0, 0), report(5.0, 0)):
        state.add(event)
    assert state.time_shares == pytest.approx({"server": 0.6, "idle": 0.4})


def test_memory_that_is_needed_is_that_of_all_that_waited() -> None:
    need = MemoryNeed()
    for live, running, waiting, gone in ((100, 1, 0, 0), (300, 2, 5, 3), (300, 3, 2, 4), (0, 0, 9, 4)):
        others = {"live_bytes": float(live), "running": float(running)}
        need.step(EngineFigures("m", 0, 1, waiting, 1, 9, gone, others))
    assert need.gave_way == 4 and need.more == 150.0 * 5

"""What the tree says of candidates, by made-up events: whose score is whose, and what became of each."""

from __future__ import annotations

import pytest

from qpdsl.executor.events.events import (
    Answered,
    CandidateRecord,
    Event,
    Expanded,
    GivenUp,
    InstanceDone,
    InstanceStarted,
    RowDone,
    RunStarted,
    Selected,
    Valued,
)
from qpdsl.tui.screens.candidate import lost_text
from qpdsl.tui.state.run_state import RunState
from qpdsl.tui.state.search import Key, LostAnswer, SearchTree, ranking_of

OPERATORS = [
    {"id": name, "operator": kind, "text": kind}
    for name, kind in (("keep", "TopK"), ("vote", "Vote"), ("peek", "Peek"), ("split", "Split"))
]


def tree_of(*some: Event) -> SearchTree:
    state = RunState()
    how = {"seed": 0, "device": "cpu", "concurrency": 1, "pid": 1, "wall": 0.0, "version": "0"}
    state.add(RunStarted(program="p", plan={"operators": OPERATORS}, rows=1, **how))  # type: ignore[arg-type]
    for event in some:
        state.add(event)
    return state.trees["a"]


def made(*paths: tuple[int, ...], aside: tuple[str, ...] = (), copies: bool = False, **how: object) -> Expanded:
    how = {} if copies else {"finish": "stop", "tokens": 3, **how}
    candidates = tuple(CandidateRecord(path=path, step="" if copies else f"{path}", **how) for path in paths)  # type: ignore[arg-type]
    return Expanded(instance="a", operator="generate", aside=aside, candidates=candidates)


def scored(scores: dict[tuple[int, ...], float], aside: tuple[str, ...] = ()) -> Valued:
    paths, values = tuple(scores), tuple(scores.values())
    return Valued(instance="a", operator="score", aside=aside, column="score", paths=paths, values=values, scores=True)


def ended(error: str | None = None) -> InstanceDone:
    return InstanceDone(instance="a", prompt_tokens=1, sampled_tokens=1, seconds=1.0, error=error)


def fates(tree: SearchTree) -> dict[Key, str]:
    return {node.key: tree.fate(node) for node in tree.nodes()}


def test_what_is_peeked_at_is_told_apart_from_what_comes_later() -> None:
    frame = ("peek@0",)
    tree = tree_of(
        made((0,)),
        made((0, 0), aside=frame),
        scored({(0, 0): 0.25}, aside=frame),
        scored({(0,): 0.25}),
        made((0, 0)),
        scored({(0, 0): 0.75}),
    )
    step, real, peeked = tree.node((0,)), tree.node((0, 0)), tree.node((0, 0), frame)
    assert (step.score, real.score, peeked.score) == (0.25, 0.75, 0.25)
    assert [(node.heads, node.key) for node in peeked.line()] == [
        (False, ((), (0,))),
        (True, (frame, (0,))),
        (False, (frame, (0, 0))),
    ]
    assert tree.fate(peeked) == "beside" and tree.fates.total() == 2


def test_each_group_is_a_ranking_with_a_cut_of_its_own() -> None:
    def kept(kept: int, dropped: int, group: str, *keys: float) -> Selected:
        return Selected(instance="a", operator="keep", kept=((kept,),), dropped=((dropped,),), group=group, keys=keys)

    tree = tree_of(made((0,), (1,), (2,), (3,)), kept(0, 1, "0", 0.9, 0.8), kept(2, 3, "1", 0.2, 0.1))
    rankings = [ranking_of(tree, tree.node((number,))) for number in range(4)]
    assert [ranking.selection.group for ranking in rankings if ranking] == ["0", "0", "1", "1"]
    assert all(ranking is not None and ranking.cuts for ranking in rankings)


def test_a_trace_of_before_with_one_ranking_over_all_groups_shows_no_cut() -> None:
    scores = {(0,): 0.9, (1,): 0.8, (2,): 0.2, (3,): 0.1}
    selected = Selected(instance="a", operator="keep", kept=((0,), (2,)), dropped=((1,), (3,)))
    tree = tree_of(made(*scores), scored(scores), selected)
    ranking = ranking_of(tree, tree.node((0,)))
    assert ranking is not None and not ranking.cuts and ranking.kept == 2


def test_bars_have_the_range_of_their_round() -> None:
    tree = tree_of(made((0,), (1,), (2,)), scored({(0,): -8.0, (1,): -4.0, (2,): 0.0}))
    assert tree.scaled and [tree.part(tree.node((number,))) for number in range(3)] == [0.0, 0.5, 1.0]
    shares = tree_of(made((0,), (1,)), scored({(0,): 0.2, (1,): 0.4}))
    assert not shares.scaled and shares.part(shares.node((0,))) == 0.2


def test_a_vote_has_its_tally_and_a_word_for_each() -> None:
    voted = Selected(
        instance="a",
        operator="vote",
        kept=((1,),),
        dropped=((0,), (2,), (3,), (4,)),
        keys=("42", "7", "42", None, "7"),
        weights=(1.0, 1.0, 1.0, None, None),
    )
    left = GivenUp(instance="a", operator="generate", paths=((5,),))
    tree = tree_of(made((0,), (1,), (2,), (3,), (4,)), left, voted, Answered(instance="a", operator="vote", path=(1,)))
    assert [fates(tree)[(), (number,)] for number in range(6)] == [
        "outvoted",
        "answer",
        "agreed",
        "no vote",
        "no vote",
        "given up",
    ]
    ranking = ranking_of(tree, tree.node((1,)))
    assert ranking is not None
    assert [(votes.answer, votes.total, votes.rows) for votes in ranking.tally] == [
        ("42", 2.0, 2),
        ("7", 1.0, 1),
        (None, 0.0, 2),
    ]
    assert tree.given_up == 1


def test_the_answer_of_a_copy_stands_on_what_was_copied() -> None:
    values = Valued(
        instance="a", operator="x", column="answer", paths=((0, 0), (0, 1)), values=("7", "7"), scores=False
    )
    voted = Selected(instance="a", operator="vote", kept=((0, 0),), dropped=((0, 1),), keys=("7", "7"))
    answered = Answered(instance="a", operator="vote", path=(0, 0))
    tree = tree_of(made((0,), finished=True), made((0, 0), (0, 1), copies=True), values, voted, answered)
    (star,) = [node for node in tree.nodes() if node.answer]
    assert star.path == (0,) and star.values == {"answer": "7"}
    assert fates(tree) == {((), (0,)): "answer", ((), (0, 0)): "copy", ((), (0, 1)): "agreed"}
    ranking = ranking_of(tree, star)
    assert ranking is not None and ranking.place(tree.ranked_row(star)) == 1


@pytest.mark.parametrize(("error", "expected"), [(None, "unfinished"), ("too long", "failed")])
def test_what_a_row_leaves_behind(error: str | None, expected: str) -> None:
    tree = tree_of(made((0,), (1,)), made((1, 0), finished=True))
    assert fates(tree) == {((), (0,)): "open", ((), (1,)): "kept", ((), (1, 0)): "finished"}
    tree = tree_of(made((0,)), Answered(instance="a", operator="x", path=(0,)), ended("late"))
    assert fates(tree) == {((), (0,)): "failed"}
    tree = tree_of(made((0,)), ended(error))
    assert fates(tree) == {((), (0,)): expected}


def test_a_row_that_is_run_again_has_a_new_tree() -> None:
    tree = tree_of(InstanceStarted(instance="a"), made((0,), (1,)), InstanceStarted(instance="a"), made((0,)))
    assert len(tree) == 1


def answers(values: dict[tuple[int, ...], str | None]) -> Valued:
    paths, column = tuple(values), tuple(values.values())
    return Valued(instance="a", operator="extract", column="answer", paths=paths, values=column, scores=False)


def graded(*some: Event, answer: str = "41", reference: str = "42") -> LostAnswer | None:
    """Where the right answer of a row was lost, if it was."""
    state = RunState()
    how = {"seed": 0, "device": "cpu", "concurrency": 1, "pid": 1, "wall": 0.0, "version": "0"}
    state.add(RunStarted(program="p", plan={"operators": OPERATORS}, rows=1, **how))  # type: ignore[arg-type]
    right = answer == reference
    result = {"answer": answer, "score": None, "prompt_tokens": 1, "sampled_tokens": 1, "seconds": 1.0}
    for event in (*some, ended(), RowDone(row="a", reference=reference, correct=right, **result)):  # type: ignore[arg-type]
        state.add(event)
    return state.rows["a"].lost


def test_a_wrong_row_says_where_its_right_answer_was_cut() -> None:
    rows = [(number,) for number in range(5)]
    cut = Selected(
        instance="a", operator="keep", kept=((0,), (1,)), dropped=((2,), (3,), (4,)), keys=(0.9, 0.8, 0.5, 0.4, 0.1)
    )
    given = Answered(instance="a", operator="return", path=(0,))
    found = dict.fromkeys(rows, "41") | {(3,): "42", (4,): "42.0"}
    lost = graded(made(*rows), answers(found), cut, given)
    assert lost is not None and lost.node.path == (3,) and lost.place == 4
    # A column that says something else may have any value.
    other = Valued(instance="a", operator="x", column="steps", paths=((2,),), values=("42",), scores=False)
    assert graded(made(*rows), answers(dict.fromkeys(rows, "41")), other, cut, given) is None
    assert graded(made(*rows), answers(found), cut, given, answer="42") is None


def test_a_vote_says_by_how_much_the_right_answer_lost() -> None:
    rows = [(number,) for number in range(5)]
    keys = ("41", "41", "41", "42", "42")
    vote = Selected(instance="a", operator="vote", kept=((0,),), dropped=tuple(rows[1:]), keys=keys)
    given = Answered(instance="a", operator="return", path=(0,))
    lost = graded(made(*rows), answers(dict(zip(rows, keys, strict=True))), vote, given)
    assert lost is not None and lost.place is None
    assert lost_text(lost, None) == "the right answer lost the vote: 2 to 3"

"""Which row of a tree is expanded next: PUCT and AB-MCTS, over trees without a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from qpdsl.executor.runtime.instance.candidates import Row
from qpdsl.executor.runtime.tree_search.ab_mcts import AdaptiveBranching
from qpdsl.executor.runtime.tree_search.nodes import SearchNode, SearchPolicy
from qpdsl.executor.runtime.tree_search.puct import Puct

# The children of a row, by its path: their paths, values and whether they go on.
Expand = Callable[[tuple[int, ...]], list[tuple[float | None, bool]]]


def grown(
    policy: SearchPolicy, expand: Expand, simulations: int, at_once: int = 1
) -> tuple[SearchNode, list[tuple[int, ...]]]:
    """The tree after so many expansions, and the paths that were expanded."""
    root, expanded = SearchNode(Row(None, (), {})), list[tuple[int, ...]]()
    while simulations:
        chosen = []
        while simulations and len(chosen) < at_once and (node := policy.choose(root)) is not None:
            chosen.append((node, node.expansions - 1))
            simulations -= 1
        if not chosen:
            break
        for node, number in chosen:
            path = (*node.row.path, number)
            expanded.append(node.row.path)
            children = [
                node.add(Row(None, (*path, index), {}), value, can_go_on=goes_on)
                for index, (value, goes_on) in enumerate(expand(path))
            ]
            policy.expanded(node, children)
    return root, expanded


def towards(goal: tuple[int, ...]) -> Expand:
    """Two children each, of which the one on the way to the goal is worth more."""

    def expand(path: tuple[int, ...]) -> list[tuple[float | None, bool]]:
        steps = path[1::2]
        right = goal[: len(steps)] == steps and len(steps) < len(goal)
        return [(0.9 if right and goal[len(steps)] == index else 0.1, len(steps) < 8) for index in range(2)]

    return expand


@pytest.mark.parametrize("at_once", [1, 3])
def test_puct_goes_where_values_are_great_and_expands_no_row_twice(at_once: int) -> None:
    goal = (1, 0, 1, 1, 0, 1)
    root, expanded = grown(Puct(0.3), towards(goal), 24, at_once)
    assert len(set(expanded)) == len(expanded) == 24
    reached = {node.row.path[1::2] for node in root.below()}
    assert goal in reached
    for node in (root, *root.below()):
        values = [below.own for below in (node, *node.below()) if below.own is not None]
        assert node.visits == len(values) and node.total == pytest.approx(sum(values))


def test_a_greater_c_makes_puct_search_wider() -> None:
    deepest = []
    for c in (0.0, 100.0):
        root, _ = grown(Puct(c), towards((1,) * 8), 14)
        deepest.append(max(len(node.row.path) for node in root.below()))
    assert deepest[0] > deepest[1]


@pytest.mark.parametrize("policy", [Puct(1.4), AdaptiveBranching(Random(1))], ids=["puct", "ab_mcts"])
def test_rows_at_their_end_and_rows_without_a_value_are_not_expanded(policy: SearchPolicy) -> None:
    def expand(path: tuple[int, ...]) -> list[tuple[float | None, bool]]:
        return [(0.9, False), (None, True), (0.2, len(path) < 6)]

    root, expanded = grown(policy, expand, 40)
    dead = {node.row.path for node in root.below() if not node.open and not node.children}
    ended = {node.row.path for node in root.below() if node.own in (0.9, None)}
    assert ended <= dead and not ended & set(expanded)


def test_puct_ends_where_nothing_is_left() -> None:
    root, expanded = grown(Puct(1.0), lambda path: [(0.5, len(path) < 4)] * 2, 1000)
    assert len(expanded) == 1 + 2 + 4 and all(node.expansions or not node.open for node in root.below())
    # Deep trees are no matter.
    _, expanded = grown(Puct(1.0), lambda path: [(0.5, True)], 1200)
    assert len(expanded) == 1200


def test_ab_mcts_goes_wider_where_new_children_are_good_and_deeper_where_they_get_better() -> None:
    wide, deep = Counter[int](), Counter[int]()
    for seed in range(8):
        for counts, gain in ((wide, -0.3), (deep, 0.3)):
            _, expanded = grown(
                AdaptiveBranching(Random(seed)), lambda path, gain=gain: [(0.3 + gain * (len(path) > 1), True)], 30
            )
            counts.update(len(path) // 2 for path in expanded)
    assert wide[0] > 4 * deep[0]
    assert max(deep) > max(wide)


def test_ab_mcts_depends_on_its_random_numbers_alone() -> None:
    runs = [grown(AdaptiveBranching(Random(seed)), towards((1, 0, 1)), 20)[1] for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]

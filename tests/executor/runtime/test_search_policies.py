"""Which row of a tree is expanded next: PUCT and AB-MCTS, over trees without a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from qpdsl.executor.runtime.instance.candidates import Row
from qpdsl.executor.runtime.tree_search.ab_mcts import AdaptiveBranching, ArmBandit, BetaWorth, GaussianWorth, Worth
from qpdsl.executor.runtime.tree_search.hierarchical import ChildValues, HierarchicalBranching, draws
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


@pytest.mark.parametrize(
    ("values", "posterior"),
    [([0.2], (0.1, 2, 2, 0.06)), ([0.2, 0.8], (1 / 3, 3, 3, 0.148888889)), ([0.2, 0.8, 0.5], (0.375, 4, 4, 0.116875))],
)
def test_posteriors_are_those_of_treequest(values: list[float], posterior: tuple[float, ...]) -> None:
    gaussian, beta = GaussianWorth(), BetaWorth()
    for value in values:
        gaussian.add(value)
        beta.add(value)
    assert gaussian.posterior == pytest.approx(posterior, abs=1e-9)
    assert (beta.right, beta.wrong) == pytest.approx((0.5 + sum(values), 0.5 + len(values) - sum(values)))


@pytest.mark.parametrize(
    ("wider", "deeper", "share"),
    [
        ([0.5], [], 0.655), ([0.9], [], 0.715), ([0.1], [], 0.537), ([0.2, 0.3], [0.9], 0.278),
        ([0.9, 0.8], [0.3, 0.2], 0.860), ([0.5] * 8, [0.9] * 8, 0.007),
    ],
)  # fmt: skip
def test_how_often_a_new_child_is_preferred(wider: list[float], deeper: list[float], share: float) -> None:
    # The shares are of 40,000 draws of the reference, +-0.005; here 6,000, +-0.02.
    options: list[Worth] = [GaussianWorth(), GaussianWorth()]
    for option, values in zip(options, (wider, deeper), strict=True):
        for value in values:
            option.add(value)
    chance, count = Random(5), 6_000
    won = sum(options[0].draw(chance) >= options[1].draw(chance) for _ in range(count))
    assert won / count == pytest.approx(share, abs=0.02)


def test_puct_weighs_as_the_reference_does() -> None:
    root = SearchNode(Row(None, (), {}))
    children = [SearchNode(Row(None, (n,), {}), root) for n in range(3)]
    root.children += children
    root.visits, policy = 3, Puct(1.4)
    for child, (visits, total) in zip(children, [(2, 1.0), (1, 0.7), (0, 0.0)], strict=True):
        child.visits, child.total = visits, total
    assert [policy.worth(child, root) for child in children] == pytest.approx([0.76943, 1.104145, 0.80829], abs=1e-5)
    children[0].greatest = 0.9
    assert Puct(0.0, "max").worth(children[0], root) == 0.9 and Puct(0.0).worth(children[0], root) == 0.5


def test_an_untried_arm_comes_first_and_the_better_one_most() -> None:
    bandit = ArmBandit(2, "ucb", Random(1))
    assert [bandit.choose(), bandit.choose()] == [0, 1]
    for _ in range(2):
        bandit.add(0, [1.0])
    for _ in range(2):
        bandit.choose()
    # Of mean 0.5 over 4 of 10: 0.5 + sqrt(2 ln 10 / 4).
    ten = ArmBandit(2, "ucb", Random(1))
    for arm, times in ((0, 4), (1, 6)):
        for _ in range(times):
            ten._tried[arm] += 1
            ten.add(arm, [0.5])
    assert ten.bound(0) == pytest.approx(1.572983, abs=1e-6)
    thompson, made = ArmBandit(2, "thompson", Random(3)), Counter[int]()
    for _ in range(60):
        arm = thompson.choose()
        made[arm] += 1
        thompson.add(arm, [(0.2, 0.8)[arm]])
    assert made[1] > 2 * made[0]


def values_of(*values: float) -> ChildValues:
    child = ChildValues()
    for value in values:
        child.add(value)
    return child


def test_the_hierarchical_model_draws_from_its_posterior() -> None:
    # The means and who is greatest, of 2,000,000 weighed draws from the priors.
    children = [values_of(0.9, 0.8, 0.85), values_of(0.3), values_of(0.5, 0.6)]
    chance, drawn = Random(3), list[list[float]]()
    for _ in range(1_500):
        new, known = draws(children, chance)
        drawn.append([new, *known])
    means = [sum(column) / len(drawn) for column in zip(*drawn, strict=True)]
    assert means == pytest.approx([0.5565, 0.8130, 0.3674, 0.5557], abs=0.03)
    greatest = Counter(row.index(max(row)) for row in drawn)
    assert [greatest[index] / len(drawn) for index in range(4)] == pytest.approx([0.175, 0.738, 0.029, 0.057], abs=0.05)


def test_a_child_whose_values_are_all_alike_is_pruned() -> None:
    assert values_of(0.701, 0.699, 0.7, 0.2).is_pruned
    assert not values_of(0.7, 0.7, 0.7).is_pruned and not values_of(0.7, 0.7, 0.2, 0.2).is_pruned


def test_ab_mcts_m_goes_wider_and_deeper_as_the_values_say() -> None:
    wide, deep = Counter[int](), Counter[int]()
    for seed in range(4):
        for counts, gain in ((wide, -0.3), (deep, 0.3)):
            _, expanded = grown(
                HierarchicalBranching(Random(seed)), lambda path, gain=gain: [(0.5 + gain * (len(path) > 1), True)], 20
            )
            counts.update(len(path) // 2 for path in expanded)
    assert sum(depth * count for depth, count in deep.items()) > sum(depth * count for depth, count in wide.items())
    runs = [grown(HierarchicalBranching(Random(seed)), towards((1, 0, 1)), 12)[1] for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]

"""The stage `search`: the rows that come out, their columns, and what they do not depend on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.optimize.optimizer import planned
from tests.support.executor.programs import HEADER, compiled, run_all, texts

STEPS = ' generate llm n=2 stop="\\n\\n" temperature=1.2\n score prm\n'


def searched(stages: str, count: int = 2) -> list[InstanceResult]:
    plan = compiled(f"{HEADER}program p(problem: text) -> text {{\n chat user=problem\n{stages} return text\n}}")
    return run_all(plan, [{"problem": text} for text in texts(count)])


def shown(result: InstanceResult) -> list[Mapping[str, Any]]:
    return [{**row.columns, "path": row.path} for row in result.rows]


METHODS = ["puct", "ab_mcts", "ab_mcts_m"]


@pytest.mark.parametrize("method", METHODS)
def test_where_no_row_is_carried_on_the_leaves_come_out_until_some_are_finished(method: str) -> None:
    (unfinished,) = searched(f" search {method} by score simulations=1 rollout=off {{\n{STEPS} }}\n", 1)
    rows = shown(unfinished)
    assert rows and not any(row["finished"] for row in rows)
    assert not any(other["path"][: len(row["path"])] == row["path"] for row in rows for other in rows if row != other)
    assert unfinished.counts["unfinished"] == 1
    (ended,) = searched(f" search {method} by score simulations=7 rollout=off {{\n{STEPS} }}\n", 1)
    assert ended.rows and all(row["finished"] for row in shown(ended)) and "unfinished" not in ended.counts
    for row in (*rows, *shown(ended)):
        assert (row["visits"], row["value"]) == (1, row["score"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rollout", ["greedy", "sampled"])
def test_each_new_row_is_carried_on_to_its_end_and_is_worth_what_it_came_to(method: str, rollout: str) -> None:
    options = f"simulations=4 per_round=2 rollout={rollout}"
    for result in searched(f" search {method} by score {options} {{\n{STEPS} }}\n"):
        rows = shown(result)
        assert result.error is None and 4 <= len(rows) == len({row["path"] for row in rows})
        assert all(row["finished"] and row["value"] == row["score"] for row in rows)
        assert result.counts["rollouts"] == sum(-1 in row["path"] for row in rows) > 0
        # Those below the robust child come first, the best of them ahead.
        first = rows[0]["path"][:2]
        robust = [row["value"] for row in rows if row["path"][:2] == first]
        assert [row["value"] for row in rows[: len(robust)]] == robust == sorted(robust, reverse=True)


def test_a_rollout_depends_on_its_row_alone() -> None:
    found: dict[tuple[int, ...], set[str]] = {}
    for options in ("simulations=2 c=0", "simulations=5 c=0 backup=max", "simulations=5 c=9 per_round=3"):
        for row in searched(f" search puct by score {options} rollout=sampled {{\n{STEPS} }}\n", 1)[0].rows:
            found.setdefault(row.path, set()).add(row.generated.text)
    assert len(found) > 4 and all(len(texts_of_path) == 1 for texts_of_path in found.values())


@pytest.mark.parametrize("method", METHODS)
def test_few_simulations_are_the_first_of_many(method: str) -> None:
    few, many = (
        {row.path: row.generated.text for row in result.rows}
        for count in (1, 3)
        for result in searched(f" search {method} by score simulations={count} rollout=sampled {{\n{STEPS} }}\n", 1)
    )
    assert few.items() < many.items()


def test_where_nothing_is_finished_the_most_visited_line_is_carried_on() -> None:
    for result in searched(f" search puct by score simulations=1 {{\n{STEPS} }}\n"):
        (row,) = shown(result)
        assert row["finished"] and row["value"] == row["score"] and row["path"][-1] == 0 and -1 in row["path"]
        assert result.counts["rollouts"] == 1 and "unfinished" not in result.counts


ARMS = (
    ' branch { { generate llm stop="\\n\\n" temperature=1.2 | let arm = 0 }'
    ' { generate llm stop="\\n\\n" temperature=0.3 | let arm = 1 } }\n score prm\n'
)


@pytest.mark.parametrize("arms", ["thompson", "ucb"])
@pytest.mark.parametrize("method", ["ab_mcts", "ab_mcts_m"])
def test_a_bandit_chooses_which_arm_makes_a_child(method: str, arms: str) -> None:
    options = f"simulations=6 rollout=sampled arms={arms}"
    for result in searched(f" search {method} by score {options} {{\n{ARMS} }}\n"):
        rows = shown(result)
        assert result.error is None and len(rows) == 6
        assert {row["arm"] for row in rows} <= {0, 1}
        # An arm that was never tried comes first.
        assert arms != "ucb" or {row["arm"] for row in rows} == {0, 1}
        # The arm that made a row also carries it on.
        assert all(row["arm"] in row["path"][1:] for row in rows)
    (both,) = searched(f" search {method} by score simulations=3 rollout=sampled {{\n{ARMS} }}\n", 1)
    assert len(both.rows) == 6


def test_a_value_that_is_no_share_is_refused_where_shares_are_weighed() -> None:
    for method in ("ab_mcts_m", "ab_mcts"):
        beta = " prior=beta" if method == "ab_mcts" else ""
        (result,) = searched(f" search {method} by logprob simulations=2{beta} {{\n{STEPS} }}\n", 1)
        assert result.error is not None and "takes values from 0 to 1" in result.error


def test_a_loop_that_ends_before_its_rows_is_counted() -> None:
    loop = ' repeat {rounds} {{ generate llm stop="\\n\\n" }}\n'
    few, many = (searched(loop.format(rounds=rounds), 1)[0] for rounds in (1, 40))
    assert few.counts["unfinished"] == 1 and "unfinished" not in many.counts
    (step,) = searched(' generate llm stop="\\n\\n"\n', 1)
    assert "unfinished" not in step.counts


def test_where_each_row_begins_a_turn_all_are_answers() -> None:
    again = ' chat user="Again: {problem}"\n generate llm temperature=1.0\n score prm given problem\n'
    for result in searched(f" search ab_mcts by score simulations=6 {{\n{again} }}\n"):
        assert result.error is None and len(result.rows) == 6
        for row in shown(result):
            below = [other["score"] for other in shown(result) if other["path"][: len(row["path"])] == row["path"]]
            assert row["visits"] == len(below) and row["value"] == pytest.approx(sum(below) / len(below), abs=1e-4)


def test_what_is_drawn_below_a_row_does_not_depend_on_when_it_was_expanded() -> None:
    found: dict[tuple[int, ...], list[str]] = {}
    for options in ("simulations=3 c=0", "simulations=3 c=9", "simulations=3 c=1 per_round=3"):
        for row in searched(f" search puct by score {options} rollout=off {{\n{STEPS} }}\n", 1)[0].rows:
            found.setdefault(row.path, []).append(row.generated.text)
    assert any(len(pieces) > 1 for pieces in found.values())
    assert all(len(set(pieces)) == 1 for pieces in found.values())


def test_finished_rows_pass_and_rows_without_children_are_gone() -> None:
    (result,) = searched(f" generate llm temperature=0\n search puct by logprob simulations=4 {{\n{STEPS} }}\n", 1)
    (row,) = shown(result)
    assert (row["path"], row["visits"], row["value"], row["score"]) == ((0,), 0, None, None)
    (result,) = searched(f" search puct by score simulations=4 {{\n{STEPS} where tokens < 0\n }}\n", 1)
    assert result.rows == () and result.error is not None and "`where`" in result.error


@pytest.mark.parametrize(
    "head",
    ["ab_mcts by score simulations=4 prior=beta arms=thompson rollout=sampled", "ab_mcts_m by score simulations=4"],
)
def test_every_plan_gives_the_same_rows(head: str) -> None:
    text = f"{HEADER}program p(problem: text) -> text {{\n chat user=problem\n search {head} {{\n{ARMS} }}\n"
    lowered = lower(parse_file(Source("test.qp", text + " best by value\n}")), "p", Environment())
    rows = []
    for naive in (True, False):
        results = run_all(planned(lowered, naive=naive), [{"problem": problem} for problem in texts(2)])
        assert all(result.error is None for result in results)
        rows.append([shown(result) for result in results])
    assert rows[0] == rows[1]

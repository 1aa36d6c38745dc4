"""The stage `search`: the rows that come out, their columns, and what they do not depend on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from qpdsl.executor.runtime.run import InstanceResult
from tests.support.executor.programs import HEADER, compiled, run_all, texts

STEPS = ' generate llm n=2 stop="\\n\\n" temperature=1.2\n score prm\n'


def searched(stages: str, count: int = 2) -> list[InstanceResult]:
    plan = compiled(f"{HEADER}program p(problem: text) -> text {{\n chat user=problem\n{stages} return text\n}}")
    return run_all(plan, [{"problem": text} for text in texts(count)])


def shown(result: InstanceResult) -> list[Mapping[str, Any]]:
    return [{**row.columns, "path": row.path} for row in result.rows]


@pytest.mark.parametrize("method", ["puct", "ab_mcts"])
def test_out_come_the_leaves_with_their_values(method: str) -> None:
    for result in searched(f" search {method} by score simulations=5 per_round=2 {{\n{STEPS} }}\n"):
        assert result.error is None
        rows = shown(result)
        ended = [row["finished"] for row in rows]
        assert ended == sorted(ended, reverse=True)
        assert len({row["path"] for row in rows}) == len(rows) <= 10
        assert not any(
            other["path"][: len(row["path"])] == row["path"] for row in rows for other in rows if row != other
        )
        for row in rows:
            assert (row["visits"], row["value"]) == (1, row["score"])


def test_where_each_row_begins_a_turn_all_are_answers() -> None:
    again = ' chat user="Again: {problem}"\n generate llm temperature=1.0\n score prm given problem\n'
    for result in searched(f" search ab_mcts by score simulations=6 {{\n{again} }}\n"):
        assert result.error is None and len(result.rows) == 6
        for row in shown(result):
            below = [other["score"] for other in shown(result) if other["path"][: len(row["path"])] == row["path"]]
            assert row["visits"] == len(below) and row["value"] == pytest.approx(sum(below) / len(below), abs=1e-4)


def test_what_is_drawn_below_a_row_does_not_depend_on_when_it_was_expanded() -> None:
    found: dict[tuple[int, ...], list[str]] = {}
    for options in ("simulations=3 c=0", "simulations=6 c=0", "simulations=6 c=9", "simulations=6 c=9 per_round=3"):
        for row in searched(f" search puct by score {options} {{\n{STEPS} }}\n", 1)[0].rows:
            found.setdefault(row.path, []).append(row.generated.text)
    assert any(len(pieces) > 1 for pieces in found.values())
    assert all(len(set(pieces)) == 1 for pieces in found.values())


def test_finished_rows_pass_and_rows_without_children_are_gone() -> None:
    (result,) = searched(f" generate llm temperature=0\n search puct by logprob simulations=4 {{\n{STEPS} }}\n", 1)
    (row,) = shown(result)
    assert (row["path"], row["visits"], row["value"], row["score"]) == ((0,), 0, None, None)
    (result,) = searched(f" search puct by score simulations=4 {{\n{STEPS} where tokens < 0\n }}\n", 1)
    assert result.rows == () and result.error is not None and "`where`" in result.error

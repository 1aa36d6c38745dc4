"""What `state_access` says of each operator against what the runtime does to rows, over random programs."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import pytest

import qpdsl as qp
from qpdsl.executor.runtime import run as runtime
from qpdsl.executor.runtime.instance.candidates import Candidates, Generated, Row
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.source import Span
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalOp
from qpdsl.planner.plan.reads import GENERATED, PARTS, state_access
from tests.support.planner.lowered import program_of
from tests.support.planner.scripted_runs import ENVIRONMENT, result_of
from tests.support.planner.searches import HEADER, random_search

PROGRAMS = 40
_INSIDE = (ops.Repeat, ops.Search, ops.Search, ops.Branch, ops.If, ops.Each, ops.Peek, ops.Ask, ops.Call)
_CLOSING = """program p(problem: text) -> text like search_and_learn {
  chat user=problem
  split 2
  repeat 3 { generate llm n=2 temperature=1.0 stop="." | score prm given problem | keep 1 by score per group }
  first 2 per group
  split 3 by score
  score entropy into unsure
  score logprob into sure
  best by score
}"""

# The verifiers that random programs seldom have, or never.
_ASKING = """program p(problem: text) -> text {
  chat user=problem
  generate llm n=3 max_tokens=4
  score prob(llm, "{text}?", "yes", "no") into likely
  score likelihood(llm, "{text}?", problem) into channel
  score equal(text, problem) into same
  score json into valid
  let all = likely + same + valid
  order by compare(llm, "{a.text} or {b.text}?")
  keep 2 by compare(llm, "{a.text} or {b.text}?")
  best by compare(llm, "{a.text} or {b.text}? {a.all}")
}"""

_CALLING = """model llm = "zoo/counting"
program p(problem: text) -> int {
  chat user=problem
  generate llm as call(doubled) into call
  tool call into found
  chat tool=found
  generate llm max_tokens=3
  tool doubled(number=3) into result
  return result
}"""


@qp.tool
def doubled(number: int) -> int:
    """Twice a number."""
    return 2 * number


_read: dict[type[ops.Operator], set[str]] = defaultdict(set)


class Watched(Generated):
    """What was generated in a row, which notes who reads what of it. A copy that hands everything on reads nothing."""

    reader: type[ops.Operator] = ops.Operator

    def __getattribute__(self, name: str) -> Any:
        if name in GENERATED and not sys._getframe(1).f_code.co_filename.endswith("dataclasses.py"):
            _read[type(self).reader].add(name)
        return super().__getattribute__(name)


def generated_of(row: Row) -> dict[str, Any]:
    """What was generated in a row, read by nobody."""
    return {field.name: object.__getattribute__(row.generated, field.name) for field in fields(Generated)}


def watched_by(op: ops.Operator, row: Row) -> Row:
    kind = type("WatchedBy", (Watched,), {"reader": type(op)})
    return replace(row, generated=kind(**generated_of(row)))


def unwatched(row: Row) -> Row:
    return replace(row, generated=Generated(**generated_of(row)))


def parts(row: Row) -> dict[str, object]:
    return {"context": row.context, "path": row.path, **generated_of(row)}


def test_the_parts_are_those_of_a_row() -> None:
    assert {field.name for field in fields(Row)} - {"columns", "generated"} == PARTS - GENERATED
    assert {field.name for field in fields(Generated)} == GENERATED


def test_every_operator_says_what_it_does_to_rows() -> None:
    class Unheard(ops.Operator):
        pass

    with pytest.raises(TypeError, match="nothing is said of what Unheard does"):
        state_access(Unheard(stage=0, span=Span(0, 0)))


def test_operators_read_and_change_no_more_of_rows_than_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: set[type[ops.Operator]] = set()

    def watching(
        operate: Callable[[PhysicalOp, Candidates, Instance], Awaitable[Candidates]],
    ) -> Callable[[PhysicalOp, Candidates, Instance], Awaitable[Candidates]]:
        async def watch(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
            state = state_access(node.op)
            made = await operate(node, tuple(watched_by(node.op, row) for row in rows), instance)
            made = tuple(map(unwatched, made))
            ran.add(type(node.op))
            read = _read.pop(type(node.op), set())
            assert read <= state.reads, (node.op, read)
            origins = {row.path: parts(row) for row in rows}
            for row in () if isinstance(node.op, _INSIDE) else made:
                before = origins.get(row.path) or origins[row.path[:-1]]
                changed = {part for part, value in parts(row).items() if before[part] != value}
                assert changed <= state.changes, (node.op, changed)
            return made

        return watch

    monkeypatch.setattr(runtime, "_OPERATORS", {kind: watching(own) for kind, own in runtime._OPERATORS.items()})
    for seed, text in enumerate([HEADER + _CLOSING, HEADER + _ASKING, *map(random_search, range(PROGRAMS))]):
        with suppress(QpError):  # the checker refuses a few
            result_of(plan(program_of(text, "p", ENVIRONMENT)), seed, 0)
    qp.parse(_CALLING, functions=[doubled]).run("2")
    assert ran >= set(runtime._OPERATORS) - {ops.PythonExtract, ops.Passes, ops.Prompt}

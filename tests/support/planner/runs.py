"""Running plans on small models, and what must be the same between the results of two of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from qpdsl.executor.events.events import Event, OperatorDone
from qpdsl.executor.runtime.instance.candidates import Row
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.values.value import Value
from qpdsl.session.session import Session
from tests.support.executor.programs import arguments, run_all, texts
from tests.support.paths import ROOT

# How much of each shipped program is run, and what its text parameters hold.
_SMALL: Mapping[str, Value] = {"n": 6, "depth": 3, "width": 2, "expand": 2, "subtrees": 2}
_NOTE = "Rosa Haddad is 64 years old. Tags: dancing."
# The shipped programs: files, with the name of one of their programs where there are several.
SHIPPED = [
    (path, program)
    for path in sorted((ROOT / "programs").glob("*.qp"))
    for program in ([None, "order"] if path.stem == "constrained_json" else [None])
]


def run_plan(physical: PhysicalPlan, rows: int = 2) -> tuple[list[InstanceResult], Counter[str]]:
    """The results on a few problems, and what the events counted."""
    named = {param.name for param in physical.params}
    small = {name: value for name, value in _SMALL.items() if name in named}
    open_ = [param.name for param in physical.params if param.default is None]
    inputs = [_NOTE] if "note" in open_ else texts(rows)
    counts: Counter[str] = Counter()

    def count(event: Event) -> None:
        if isinstance(event, OperatorDone):
            counts.update(event.counts)
            counts["prompt"] += event.prompt_tokens
            counts["cached"] += event.cached_tokens
            counts["sampled"] += event.sampled_tokens

    # What one run keeps must not serve the next.
    session = Session()
    physical = replace(physical, floor=64)
    session.events.subscribe(count)
    problems = [arguments(physical, **small, **dict.fromkeys(open_, text)) for text in inputs]
    return run_all(physical, problems, session=session), counts


def answers(results: list[InstanceResult]) -> list[tuple[object, object]]:
    """The value of each result, and its error."""
    return [(result.value, result.error) for result in results]


def assert_same(before: list[InstanceResult], after: list[InstanceResult], read: set[str] | None = None) -> None:
    """The same values and rows; only columns of `read` count, and tokens may be cut off where that leaves text out."""
    assert answers(before) == answers(after)
    for expected, result in zip(before, after, strict=True):
        if read is None:
            assert expected.score == result.score
        assert [row.path for row in expected.rows] == [row.path for row in result.rows]
        for expected_row, row in zip(expected.rows, result.rows, strict=True):
            _assert_same_row(expected_row, row, read)


def _assert_same_row(expected: Row, row: Row, read: set[str] | None) -> None:
    tokens = row.generated.tokens
    assert expected.generated.tokens[: len(tokens) if read is not None else None] == tokens
    names = set(row.columns) if read is None else read
    columns, made = ([(name, of[name]) for name in of if name in names] for of in (expected.columns, row.columns))
    assert names <= row.columns.keys()
    assert columns == made

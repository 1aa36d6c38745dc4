"""Rules are proved by running the plan before and after each on two small models; no exact plan changes a token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from qpdsl.executor.events.events import Event, Expanded, OperatorDone, Selected
from qpdsl.executor.runtime.instance.candidates import Row
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.evaluate import Value
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalPlan, everything
from qpdsl.session import Session
from tests.support.executor.programs import arguments, run_all, texts
from tests.support.paths import ROOT
from tests.support.planner.rules import FIXTURES, NAMES, before_and_after, lowered, rule_of

_OF_THE_SAMPLE = {"text", "step", "finish", "finished", "logprob", "tokens"}
# How much of each shipped program is run, and what its text parameters are given.
_SMALL: Mapping[str, Value] = {"n": 6, "depth": 3, "width": 2, "expand": 2, "subtrees": 2}
_NOTE = "Rosa Haddad is 64 years old. Tags: dancing."
SHIPPED = [
    (path, program)
    for path in sorted((ROOT / "programs").glob("*.qp"))
    for program in ([None, "order"] if path.stem == "constrained_json" else [None])
]


def ran(physical: PhysicalPlan, rows: int = 2, **given: Value) -> tuple[list[InstanceResult], Counter[str]]:
    """The results on a few problems, and what the events counted."""
    named = {param.name for param in physical.params}
    small = {name: value for name, value in _SMALL.items() if name in named} | given
    open_ = [param.name for param in physical.params if param.default is None]
    inputs = [_NOTE] if "note" in open_ else texts(rows)
    counts: Counter[str] = Counter()

    def count(event: Event) -> None:
        if isinstance(event, OperatorDone):
            counts.update(event.counts)
            counts["prompt"] += event.prompt_tokens
            counts["cached"] += event.cached_tokens
            counts["sampled"] += event.sampled_tokens

    # What one run keeps is not to be found by the next.
    fresh = Session()
    physical = replace(physical, floor=64)
    fresh.events.subscribe(count)
    asked = [arguments(physical, **small, **dict.fromkeys(open_, text)) for text in inputs]
    return run_all(physical, asked, session=fresh), counts


def assert_same(before: list[InstanceResult], after: list[InstanceResult], read: set[str] | None = None) -> None:
    """The same values and rows; only columns of `read` count, and tokens may be cut off where that leaves text out."""
    for one, other in zip(before, after, strict=True):
        assert (one.value, one.error) == (other.value, other.error)
        if read is None:
            assert one.score == other.score
        assert [row.path for row in one.rows] == [row.path for row in other.rows]
        for first, second in zip(one.rows, other.rows, strict=True):
            _assert_same_row(first, second, read)


def _assert_same_row(first: Row, second: Row, read: set[str] | None) -> None:
    tokens = second.generated.tokens
    assert first.generated.tokens[: len(tokens) if read is not None else None] == tokens
    names = set(second.columns) if read is None else read
    assert {name: first.columns[name] for name in names} == {name: second.columns[name] for name in names}


def over(physical: PhysicalPlan, model: str) -> PhysicalPlan:
    return replace(physical, models={**physical.models, "llm": model})


@pytest.mark.parametrize("model", ["zoo/counting", "zoo/counting-mini"])
@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.stem)
def test_the_plan_after_a_rule_gives_what_the_one_before_it_did(fixture: Path, model: str) -> None:
    (before, less), (after, more) = (ran(over(plan, model)) for plan in before_and_after(fixture))
    name = rule_of(fixture)
    answers = {"first", "answer"} & set(after[0].rows[0].columns if after[0].rows else ())
    assert_same(before, after, answers if name in ("stop_when_matched", "decided_vote") else None)
    if name not in ("collapse_greedy", "decided_vote", "stop_when_matched", "merge_equal", "drop_unread"):
        assert [one.near_ties for one in before] == [one.near_ties for one in after]
    if model == "zoo/counting":
        assert _spares(name, less, more), (name, less, more)


def _spares(rule: str, before: Counter[str], after: Counter[str]) -> bool:
    """Whether the rule did what it is for."""
    match rule:
        case "collapse_greedy" | "stop_when_matched":
            return after["sampled"] < before["sampled"]
        case "drop_unread" | "merge_equal" | "share_prefixes":
            return after["prompt"] - after["cached"] < before["prompt"] - before["cached"]
        case "incremental_score":
            return after["cached"] > before["cached"]
        case "score_cache":
            return after["steps_known"] > before["steps_known"]
        case "speculative_expansion":
            return after["run_ahead_used"] > 0
    return True


@pytest.mark.parametrize(("path", "program"), SHIPPED, ids=lambda value: getattr(value, "stem", value))
def test_every_plan_of_a_shipped_program_gives_the_same(path: Path, program: str | None) -> None:
    """All rules, none, and each switched off, where all columns are read and where only the answer is."""
    naive = plan(lowered(path, program))
    expected, _ = ran(naive, 1)
    for name in [None, *NAMES]:
        made, _ = ran(optimize(naive, [name] if name else []).plan, 1)
        assert_same(expected, made)
    for name in (None, "drop_unread", "stop_when_matched", "share_prefixes"):
        value = optimize(replace(naive, reads=()), [name] if name else []).plan
        made, _ = ran(value, 1)
        assert [(one.value, one.error) for one in made] == [(one.value, one.error) for one in expected]


def test_votes_that_are_decided_give_up_what_is_left() -> None:
    for name in ("decided_vote", "decided_vote_weighed"):
        before, after = before_and_after(Path(__file__).with_name(f"{name}.qp"))
        expected, plain = ran(before, 4)
        made, counts = ran(after, 4)
        assert [one.value for one in made] == [one.value for one in expected]
        assert counts["given_up"] > 0 and counts["sampled"] < plain["sampled"]


def test_whoever_watches_is_told_the_candidates_of_a_decided_vote() -> None:
    _, after = before_and_after(Path(__file__).with_name("decided_vote.qp"))
    session, seen = Session(), list[Event]()
    session.events.subscribe(seen.append, details=True)
    named = {param.name for param in after.params}
    (made,) = run_all(
        after, [arguments(after, **({"n": 6} if "n" in named else {}), problem=texts(1)[0])], session=session
    )
    told = [candidate.path for event in seen if isinstance(event, Expanded) for candidate in event.candidates]
    (chosen,) = [event for event in seen if isinstance(event, Selected)]
    assert chosen.kept == (made.rows[0].path,) and set(chosen.kept) | set(chosen.dropped) <= set(told)
    assert len(told) == len(set(told))


def test_what_runs_ahead_further_is_the_same() -> None:
    _, after = before_and_after(Path(__file__).with_name("speculative_expansion.qp"))

    def further(physical: PhysicalPlan, steps: int) -> PhysicalPlan:
        def deeper(op):  # type: ignore[no-untyped-def]
            how = replace(op.strategy, run_ahead=steps) if isinstance(op.strategy, GenerateStrategy) else op.strategy
            return replace(op, strategy=how, body=tuple(map(deeper, op.body)))

        return replace(physical, ops=tuple(map(deeper, physical.ops)))

    plain, _ = ran(further(after, 0), 3)
    for steps in (1, 3):
        made, counts = ran(further(after, steps), 3)
        assert_same(plain, made)
        assert counts["run_ahead"] >= counts["run_ahead_used"] > 0


def test_the_plans_differ_in_nothing_that_is_not_decided() -> None:
    for fixture in FIXTURES:
        before, after = before_and_after(fixture)
        ids = {op.id for op in everything(before.ops)}
        assert {op.id for op in everything(after.ops)} <= ids

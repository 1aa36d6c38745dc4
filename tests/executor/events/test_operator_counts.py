"""Everything that an operator counts has a name and a unit, and comes to whoever looks at the operator."""

from __future__ import annotations

import ast

from qpdsl.executor.events.events import OperatorDone
from qpdsl.executor.events.operator_counts import COUNTS, count_name, told_counts
from qpdsl.planner.plan.decode_plan import VARIANTS
from qpdsl.planner.rules import EFFECTS
from qpdsl.tui.screens.plan import operator_facts
from qpdsl.tui.state.plan import PlanLine, PlanTree
from qpdsl.tui.state.run_state import RunState
from tests.support.paths import ROOT


def counted() -> set[str]:
    """The names that the runtime and the rules count under, as they are written."""
    names: set[str] = set()
    for path in sorted((ROOT / "executor" / "runtime").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Subscript(
                    value=ast.Name("counts") | ast.Attribute(attr="counts"), slice=ast.Constant(str(name))
                ):
                    names.add(name)
                case ast.Call(func=ast.Attribute(ast.Name("counts") | ast.Attribute(attr="counts"), "update")):
                    names |= {keyword.arg for keyword in node.keywords if keyword.arg is not None}
    for variant in VARIANTS:
        names |= {*variant.counts, *variant.rare}
    for effect in EFFECTS.values():
        names |= set(effect.counts)
    return names


def test_what_is_counted_is_what_is_named() -> None:
    assert [name for name in sorted(counted()) if count_name(name) is None] == []
    # These are counted by their beginnings, or elsewhere.
    elsewhere = {name for name in COUNTS if name.startswith("answers_") or name.endswith("_steps")}
    assert set(COUNTS) - counted() == elsewhere | {"near_ties", "unfinished", "unused_prompt", "unused_sampled"}


def test_parts_are_parts_of_what_is_counted_in_the_same_unit() -> None:
    for name in COUNTS.values():
        assert name.of is None or count_name(name.of).unit == name.unit  # type: ignore[union-attr]


def done(**counts: int) -> OperatorDone:
    figures = {"rows_in": 1, "rows_out": 1, "prompt_tokens": 5, "sampled_tokens": 5, "seconds": 0.1}
    return OperatorDone(instance="a", operator="1", counts=counts, **figures)  # type: ignore[arg-type]


def test_counts_add_up_over_runs_and_are_told_with_units_and_shares() -> None:
    state = RunState()
    for event in (
        done(requests=10, retries=1, cost_millionths=1500),
        done(),
        done(requests=4, saved_calls=1, shadowed=14, differed=7, ngram_drafted=8, ngram_accepted=2, going_up=3),
    ):
        state.add(event)
    told = dict(told_counts(state.totals("1").counts))
    assert told == {
        "requests": "14 requests",
        "sent again": "1 request  7.1%",
        "cost": "0.0015",
        "calls saved": "1 request",
        "shadowed draws": "14 tokens",
        "would differ": "7 tokens  50.0%",
        "drafted by ngram": "8 tokens",
        "accepted of ngram": "2 tokens  25.0%",
        "going up": "3",
    }
    state.plan = PlanTree.of({"program": "p", "operators": []})
    line = PlanLine("1", "", "generate llm", "Generate", "on a server", "exact", 1.0, {}, None, False, "replayable")
    shown = str(operator_facts(state, line)._parts)
    assert all(str(fact) in shown for fact in told.items()) and str(("keeps to", "replayable")) in shown

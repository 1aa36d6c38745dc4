"""Programs in Python are the programs of the text: equal plans, equal noise stages, equal tokens; and they print."""

from __future__ import annotations

from dataclasses import fields
from importlib.resources import files
from typing import Any

import pytest

import qpdsl as qp
from qpdsl.planner.logical import LogicalPlan, LogicalProgram
from tests.api import shipped

TEXTS = {
    entry.name: entry.read_text("utf-8") for entry in files("qpdsl.programs").iterdir() if entry.name[-3:] == ".qp"
}
FILES = {"order": "constrained_json", "meeting": "constrained_json"}


def shape(value: Any) -> Any:
    """A plan as data that compares: its graph's nodes in order, those of inner plans inside."""
    if isinstance(value, LogicalPlan):
        return [(node, value.inputs(node), dict(value.columns(node)), shape(value.op(node))) for node in value.order()]
    if isinstance(value, tuple) and value and isinstance(value[0], LogicalPlan):
        return [shape(inner) for inner in value]
    if isinstance(value, LogicalProgram):
        return {name: shape(getattr(value, name)) for name in ("name", "params", "returns", "models", "plan")}
    if type(value).__module__.endswith("planner.ops") and hasattr(value, "stage"):
        return type(value).__name__, [(f.name, shape(getattr(value, f.name))) for f in fields(value) if f.compare]
    return value


def loaded(name: str) -> qp.Program[..., Any]:
    return qp.load(FILES.get(name, name), program=name)


def test_every_shipped_program_is_written_in_python() -> None:
    assert {f"{name}.qp" for name in shipped.PROGRAMS.keys() - FILES.keys()} == set(TEXTS)


@pytest.mark.parametrize("name", shipped.PROGRAMS)
def test_plans_are_equal(name: str) -> None:
    ours, theirs = shipped.PROGRAMS[name].logical, loaded(name).logical
    assert shape(ours) == shape(theirs)
    assert (ours.score_column, ours.warnings) == (theirs.score_column, ())


@pytest.mark.parametrize("name", shipped.PROGRAMS)
def test_a_program_prints_as_text_that_is_the_same_program(name: str) -> None:
    program = shipped.PROGRAMS[name]
    again = qp.parse(str(program), functions=program.functions.values(), folder="/") if name != "order" else None
    if again is not None:
        assert shape(again.logical) == shape(program.logical)
        assert again.file == program.file


@pytest.mark.parametrize("name", ["weighted_best_of_n", "beam_search"])
def test_tokens_are_equal(name: str, problem: str) -> None:
    given = {"problem": problem, **({"n": 4} if name == "weighted_best_of_n" else {"depth": 3})}
    ours, theirs = shipped.PROGRAMS[name].run(**given), loaded(name).run(**given)
    assert [row["text"] for row in ours.rows] == [row["text"] for row in theirs.rows]
    assert (ours.tokens, ours.score, ours.error) == (theirs.tokens, theirs.score, theirs.error)

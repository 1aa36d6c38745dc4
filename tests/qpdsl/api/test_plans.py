"""Programs in Python are the programs of the text: equal plans, equal noise stages, equal tokens; and they print."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib.resources import files
from typing import Any

import pytest
from pydantic import BaseModel

import qpdsl as qp
from family.tasks.records import evaluation_notes
from qpdsl.api.syntax_trees import rewritten
from qpdsl.grammar import ast
from qpdsl.planner.plan.logical import LogicalOp, LogicalProgram
from tests.support.api import shipped

TEXTS = {
    entry.name: entry.read_text("utf-8") for entry in files("qpdsl.programs").iterdir() if entry.name[-3:] == ".qp"
}
# No annotation says of a field of a record that it may be absent.
TEXT_ALONE = {"math_shepherd.qp"}
FILES = {"order": "constrained_json", "meeting": "constrained_json"}
# What each program that reads notes is given, and arguments under which the searches are soon done.
KINDS = {"constrained_json": "person", "order": "order", "meeting": "meeting"}
SMALL = {
    "best_of_n": {"n": 2},
    "self_consistency": {"n": 3},
    "weighted_best_of_n": {"n": 3},
    "beam_search": {"width": 2, "expand": 2},
    "dvts": {"subtrees": 2, "expand": 2},
    "rebase": {"budget": 3},
    "lookahead": {"width": 2, "expand": 2},
    "sal_best_of_n": {"n": 2, "system": ""},
    "sal_beam_search": {"width": 2, "expand": 2, "depth": 8, "system": ""},
    "sal_dvts": {"subtrees": 2, "expand": 2, "depth": 8, "system": ""},
}


def shape(value: Any) -> Any:
    """A plan as data that compares: its graph's nodes in order, those of inner plans inside."""
    if isinstance(value, tuple) and value and isinstance(value[0], LogicalOp):
        return [(dict(node.columns), shape(node.op), [shape(inner) for inner in node.inside]) for node in value]
    if isinstance(value, LogicalProgram):
        return {name: shape(getattr(value, name)) for name in ("name", "params", "returns", "models", "plan")}
    if isinstance(value, ast.Stage):
        return type(value).__name__, [(f.name, shape(getattr(value, f.name))) for f in fields(value) if f.compare]
    return value


def loaded(name: str) -> qp.Program[..., Any]:
    return qp.load(FILES.get(name, name), program=name)


def test_every_shipped_program_is_written_in_python() -> None:
    assert {f"{name}.qp" for name in shipped.PROGRAMS.keys() - FILES.keys()} == set(TEXTS) - TEXT_ALONE


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


def shortened(program: qp.Program[..., Any]) -> qp.Program[..., Any]:
    """The program with short texts in the place of its own: what it does after them is the same."""

    def cut(node: ast.Node) -> ast.Node:
        return replace(node, max_tokens=ast.Literal(12, span=node.span)) if isinstance(node, ast.Generate) else node

    file = replace(program.file, programs=tuple(rewritten(syntax, cut) for syntax in program.file.programs))
    return qp.Program(file, program.name, program.environment, program.functions)


@pytest.mark.parametrize("name", shipped.PROGRAMS)
def test_tokens_are_equal(name: str, problem: str) -> None:
    arguments: dict[str, Any] = {"problem": problem, **SMALL.get(name, {})}
    if name in KINDS:
        arguments = {"note": next(note.text for note in evaluation_notes(30) if note.kind == KINDS[name])}
    programs = shipped.PROGRAMS[name], loaded(name)
    if name == "outline_then_write":
        arguments, programs = {"topic": "cards"}, (shortened(programs[0]), shortened(programs[1]))
    ours, theirs = (program.run(**arguments) for program in programs)
    assert ours.rows == theirs.rows and ours.rows[0]["text"]
    assert (ours.tokens, ours.score, ours.error) == (theirs.tokens, theirs.score, None)
    value = ours.value
    assert (value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value) == theirs.value

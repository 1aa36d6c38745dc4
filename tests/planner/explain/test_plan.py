"""Plans of the shipped programs, and of those in `plans/`, as EXPLAIN shows them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qpdsl.grammar import ast
from qpdsl.grammar.files import Files
from qpdsl.grammar.format.unparse import format_expr
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.printable import cells
from qpdsl.grammar.source import Source, Span
from qpdsl.planner.check.program import lower
from qpdsl.planner.explain.plan import explain, explain_json
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.physical import everything
from tests.support.golden import check
from tests.support.paths import PROGRAMS

PLANS = Path(__file__).parent / "plans"
CASES = sorted([*PLANS.glob("*.qp"), *PROGRAMS.glob("*.qp")])


def lowered(path: Path) -> LogicalProgram:
    file = parse_file(Source(path.name, path.read_text("utf-8")))
    return lower(file, environment=Environment(Files(path.parent)))


def inputs_of(operators: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    for operator in operators:
        yield operator["id"], operator["inputs"]
        for inner in (operator["body"], *operator["arms"]):
            yield from inputs_of(inner)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_explain(path: Path) -> None:
    check(PLANS / f"{path.stem}.txt", explain(planned(lowered(path))))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_explain_json_tells_the_same(path: Path) -> None:
    physical = planned(lowered(path))
    data = json.loads(json.dumps(explain_json(physical)))
    assert data["program"] == path.stem
    assert data["equivalence"] == ("lossy" if " via " in explain(physical) else "exact")
    assert [op["id"] for op in data["operators"]] == [op.id for op in physical.ops]
    assert all(op["text"] in explain(physical) for op in data["operators"])


def test_the_values_given_and_the_defaults_declared() -> None:
    program = lowered(PROGRAMS / "best_of_n.qp")
    assert "parameters at their defaults" in explain(planned(program))
    given = {"n": ast.Literal(3, span=Span(0, 0))}
    params = tuple(replace(param, default=given.get(param.name, param.default)) for param in program.params)
    physical = planned(replace(program, params=params))
    data = explain_json(physical)
    declared = next(param.default for param in program.params if param.name == "n")
    assert {"name": "n", "type": "int", "default": format_expr(declared), "value": "3"} in data["parameters"]
    assert (data["samples"], data["scores"]) == (3, 3)
    assert all(type(op["rows"]) is int for op in data["operators"])
    assert "parameters at the values given" in explain(physical)


def test_columns_stand_under_each_other() -> None:
    text = (
        'program p() { prompt "日本語" | generate "m" max_tokens=9 | extract a = /' + "本" * 90 + "/ | best by tokens }"
    )
    lines = explain(planned(lower(parse_file(Source("p.qp", text))))).split("\n")[1:-3]
    assert len({cells(line[: line.index(" row")]) for line in lines}) == 1
    assert max(map(cells, lines)) < 170 and "本…" in lines[2]


def test_operators_of_a_beam_search() -> None:
    physical = planned(lowered(PROGRAMS / "beam_search.qp"))
    inputs = dict(inputs_of(explain_json(physical)["operators"]))
    found = [(op.id, op.op.operator, op.op.stage, op.rows, inputs[op.id]) for op in everything(physical.ops)]
    assert found == [
        ("0", "SetContext", 0, 1, []),
        ("1", "Repeat", 1, 4, ["0"]),
        ("1.0", "Generate", 2, 628, []),
        ("1.1", "Score", 3, 628, ["1.0"]),
        ("1.2", "TopK", 4, 160, ["1.1"]),
        ("2", "TopK", 5, 1, ["1"]),
        ("3", "Extract", 6, 1, ["2"]),
        ("4", "Return", 7, 1, ["3"]),
    ]
    assert list(physical.ops[-1].columns)[-2:] == ["score", "answer"]
    assert physical.score_column == "score"


def test_a_program_of_thousands_of_stages_is_explained() -> None:
    stages = "".join(f"  where tokens > {number}\n" for number in range(1200))
    text = f'model llm = "m"\nprogram p(problem: text) -> text {{\n  chat user=problem\n  generate llm\n{stages}}}\n'
    program = lower(parse_file(Source("p.qp", text)), None, Environment())
    for naive in (False, True):
        shown = explain(planned(program, naive=naive))
        assert shown.count("where tokens > ") == 1200
        assert len(shown) < 1_200_000

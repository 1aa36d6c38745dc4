"""The TextMate grammar: its patterns compile, refer to each other, and know the words of the language."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from qpdsl.grammar.ast.stage import STAGES
from qpdsl.grammar.words import CLAUSE_FORMS, CLAUSES, DECLARATIONS, FUNCTIONS, PARAMETER_TYPES, TYPE_FORMS, TYPES
from tests.support.paths import ROOT

GRAMMAR = json.loads((ROOT / "editors" / "qp.tmLanguage.json").read_text("utf-8"))
LINES = [
    ('  generate llm n=4 stop="a {b}\\n" as Person', ["keyword.control.stage.qp", "variable.parameter.qp"]),
    ("{ split 4 }", ["keyword.control.stage.qp", "constant.numeric.qp"]),
    ("  extract x = /The (\\d+)/  # why", ["string.regexp.qp", "comment.line.number-sign.qp"]),
    ("  extract x = .a.b[0]", ["string.unquoted.path.qp"]),
    ('schema Order from "order.json"', ["keyword.declaration.qp", "entity.name.type.qp", "string.quoted.double.qp"]),
    ("  age: int(0..150)?", ["variable.other.member.qp", "support.type.qp"]),
    ("program p(problem: text) -> text within exact {", ["keyword.declaration.qp", "keyword.other.clause.qp"]),
    ("  where true and text matches /a/", ["constant.language.qp", "keyword.operator.logical.qp"]),
]


def rules(node: Any) -> Iterator[dict[str, Any]]:
    """All rules of the grammar, at any depth."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from rules(child)


def scopes(name: str, line: str) -> set[str]:
    """What one rule of the repository, or one within it, gives to a line."""
    names = set()
    for rule in rules(GRAMMAR["repository"][name]):
        for match in re.finditer(rule.get("match") or rule.get("begin") or "(?!)", line):
            names |= {rule["name"]} if "name" in rule else set()
            groups = rule.get("captures", {}).items()
            names |= {group["name"] for index, group in groups if match[int(index)] and "name" in group}
    return names


def test_patterns_compile_and_refer_to_what_is_there() -> None:
    for rule in rules(GRAMMAR):
        for key in ("match", "begin", "end"):
            if isinstance(rule.get(key), str):
                re.compile(rule[key])
        if isinstance(rule.get("include"), str):
            assert rule["include"].removeprefix("#") in GRAMMAR["repository"]


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_is_a_keyword(stage: str) -> None:
    for line in (f"  {stage} x", f"chat user=x | {stage} x", f"{{ {stage} x"):
        assert "keyword.control.stage.qp" in scopes("stage", line)
    assert not scopes("stage", f"  x by {stage}")


@pytest.mark.parametrize(
    ("rule", "words", "line"),
    [
        ("declaration", DECLARATIONS, "{} x"),
        ("clause", CLAUSES | set(CLAUSE_FORMS) | {"draft"}, "x {} y"),
        ("type", PARAMETER_TYPES, "x: {}"),
        ("form", {*FUNCTIONS, "judge", "filter", "contrast", "amortized", "grammar", "epsilon", "loss"}, "x {}(1)"),
        ("form", set(TYPE_FORMS) - set(TYPES), "x: {}(1)"),
        ("constant", {"true", "false", "none"}, "x {}"),
    ],
)
def test_other_words(rule: str, words: set[str], line: str) -> None:
    for word in words:
        assert scopes(rule, line.format(word)), word


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_lines(line: str, expected: list[str]) -> None:
    included = [rule["include"].removeprefix("#") for rule in GRAMMAR["repository"]["code"]["patterns"]]
    assert set(expected) <= set().union(*(scopes(name, line) for name in included))

"""Codes of diagnostics: all are given, and all are shown by an example."""

import re

from qpdsl.grammar.codes import CODES, RETIRED
from tests.support.paths import ROOT

ERRORS = [*(ROOT / "tests/grammar/parse/errors").glob("*.txt"), *(ROOT / "tests/planner/check/errors").glob("*.txt")]


def test_retired_codes_are_not_given_to_anything_else() -> None:
    assert not set(RETIRED) & set(CODES)


def test_every_code_is_listed_and_has_an_example() -> None:
    code = re.compile(r'"(QP\d{3})"')
    raised = {
        match
        for folder in ("grammar", "planner", "executor", "qpdsl")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "codes.py"
        for match in code.findall(path.read_text("utf-8"))
    }
    assert raised == set(CODES)
    shown = {match for path in ERRORS for match in re.findall(r"\[(QP\d{3})\]", path.read_text("utf-8"))}
    refused = {"QP101", "QP102", "QP103", "QP202", "QP241", "QP403", "QP404", "QP405"}
    in_python = {code for code in raised if code.startswith("QP5")}
    assert raised - shown <= refused | in_python

"""Codes of diagnostics: all documented, all shown by an example. `docs/errors.md` is written from `codes.py`."""

import re
from pathlib import Path

from qpdsl.grammar.codes import CODES
from tests.grammar.golden import check

ERRORS = Path(__file__).parent / "errors"
ROOT = Path(__file__).parents[2]
GROUPS = {"1": "Text and syntax", "2": "Names and types", "3": "Values and limits", "4": "Models and planning"}


def document() -> str:
    lines = ["# Errors", "", "Every code that a diagnostic can carry. Codes are stable."]
    for digit, group in GROUPS.items():
        codes = {name: code for name, code in CODES.items() if name[2] == digit}
        if codes:
            rows = [
                f"| {name} | {code.title} | {code.explanation} |".replace("`|`", "`\\|`")
                for name, code in codes.items()
            ]
            lines += ["", f"## {group}", "", "| code | | |", "|---|---|---|", *rows]
    return "\n".join(lines)


def test_the_document_lists_every_code() -> None:
    check(ROOT / "docs" / "errors.md", document())


def test_every_code_is_listed_and_has_an_example() -> None:
    code = re.compile(r'"(QP\d{3})"')
    raised = {
        found
        for folder in ("grammar", "planner")
        for path in (ROOT / folder).glob("*.py")
        if path.name != "codes.py"
        for found in code.findall(path.read_text("utf-8"))
    }
    assert raised == set(CODES)
    shown = {found for path in ERRORS.glob("*.txt") for found in re.findall(r"\[(QP\d{3})\]", path.read_text("utf-8"))}
    refused = {"QP101", "QP102", "QP103", "QP202"}
    assert raised - shown <= refused

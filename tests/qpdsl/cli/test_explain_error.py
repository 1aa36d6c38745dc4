"""`explain-error`: what a code means, from the pages that the tests hold true."""

from __future__ import annotations

import json

import pytest

from qpdsl.cli.exits import Exit
from qpdsl.grammar.codes import CODES
from tests.support.cli import Run


def test_a_page_says_what_and_shows_both_programs(qpdsl: Run) -> None:
    ran = qpdsl("explain-error", "QP203")
    assert (ran.code, ran.err) == (Exit.OK, "")
    title, _, summary, *rest = ran.out.splitlines()
    assert title == "QP203: unknown column" and summary == CODES["QP203"].summary
    explanation = CODES["QP203"]
    assert explanation.fails is not None and explanation.fixed is not None
    indented = "\n".join(line.removeprefix("    ") for line in rest)
    assert indented.index(explanation.fails.strip()) < indented.index(explanation.fixed.strip())


def test_letters_and_form_of_a_code_do_not_matter(qpdsl: Run) -> None:
    assert qpdsl("explain-error", "qp203").out == qpdsl("explain-error", "QP203").out


def test_without_a_code_all_are_listed(qpdsl: Run) -> None:
    lines = qpdsl("explain-error").out.splitlines()
    assert lines == [f"{name}  {code.title}" for name, code in CODES.items()]
    listed = json.loads(qpdsl("explain-error", "--format", "json").out)
    assert [one["code"] for one in listed] == list(CODES)


def test_json_has_the_programs_apart(qpdsl: Run) -> None:
    explanation = json.loads(qpdsl("explain-error", "QP203", "--format", "json").out)
    assert list(explanation) == ["code", "title", "summary", "body", "fails", "fixed", "files"]
    assert "best by score" in explanation["fails"] and "best by quality" in explanation["fixed"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("QP2033", "there is no code `QP2033`; did you mean `QP203`?"),
        ("203", "there is no code `203`; did you mean `QP203`?"),
        ("nonsense", "there is no code `nonsense`\n"),
    ],
)
def test_a_code_that_there_is_not(qpdsl: Run, code: str, message: str) -> None:
    ran = qpdsl("explain-error", code)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert message in ran.err and "`qpdsl explain-error` lists the codes" in ran.err

"""Every faulty program in `errors/` gives exactly the diagnostics beside it. `errors/lib/` is what they read."""

from pathlib import Path

import pytest

from qpdsl.grammar.diagnostic import Diagnostic, QpError, render
from qpdsl.grammar.files import Files
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import check as check_file
from qpdsl.planner.names.modules import Environment, Inputs
from tests.support.golden import check

ERRORS = Path(__file__).parent / "errors"
CASES = sorted(ERRORS.glob("*.qp"))
READER = Inputs(frozenset({"text", "problem"}))
ENVIRONMENT = Environment(
    Files(ERRORS),
    scorers=frozenset({"length", "problem_reader"}),
    extractors={"boxed": "text", "length": "bool", "problem_reading_extractor": "text", "retrieve": "[text]"},
    inputs={
        **dict.fromkeys(("problem_reader", "problem_reading_extractor"), READER),
        "retrieve": Inputs(frozenset(), {"query": True, "k": False}, "query", {"query": True, "k": False}),
    },
)


def findings(source: Source) -> tuple[Diagnostic, ...]:
    """All errors and warnings of a text."""
    try:
        return check_file(parse_file(source), ENVIRONMENT)
    except QpError as error:
        return error.diagnostics


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_diagnostics(path: Path) -> None:
    source = Source(path.name, path.read_text("utf-8"))
    check(path.with_suffix(".txt"), "\n\n".join(render(found, source) for found in findings(source)))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_help_proposes_mends_the_error(path: Path) -> None:
    text = path.read_text("utf-8")
    before = findings(Source(path.name, text))
    for found in before:
        if found.edit is not None and found.source is None:
            edit = found.edit
            mended = text[: edit.span.start] + edit.text + text[edit.span.end :]
            after = findings(Source(path.name, mended))
            assert (found.code, found.span.start) not in [(error.code, error.span.start) for error in after]
            counts = [sum(one.severity == "error" for one in every) for every in (before, after)]
            assert counts[1] <= counts[0], mended.splitlines()

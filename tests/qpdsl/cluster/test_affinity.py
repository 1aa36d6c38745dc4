"""Which rows are better run by one replica."""

from __future__ import annotations

from qpdsl.cluster.dispatcher import affinity
from qpdsl.runs.data.input_row import InputRow

DOCUMENT = "The parish register begins in 1612. " * 40


def row(**arguments: object) -> InputRow:
    return InputRow("1", arguments)  # type: ignore[arg-type]


def test_questions_about_one_document_go_together() -> None:
    first = affinity(row(document=DOCUMENT, question="When?"))
    assert first is not None
    assert first == affinity(row(document=DOCUMENT + "It ends in 1700.", question="Who?"))
    assert first != affinity(row(document="Another. " + DOCUMENT, question="When?"))


def test_short_rows_go_anywhere() -> None:
    assert affinity(row(problem="What is 1 + 1?", n=3)) is None


def test_a_problem_of_several_jobs_goes_to_one_replica() -> None:
    assert affinity(row(problem="1 + 1"), jobs=4) == affinity(row(problem="1 + 1"), jobs=4) is not None
    assert affinity(row(problem="1 + 1"), jobs=4) != affinity(row(problem="1 + 2"), jobs=4)

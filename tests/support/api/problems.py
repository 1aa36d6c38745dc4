"""Problems of the built-in task, as fixtures."""

from __future__ import annotations

from itertools import islice

import pytest

from family.tasks.counting import problems


@pytest.fixture(scope="session")
def problem_texts() -> list[str]:
    return [problem.text for problem in islice(problems(5, "held-out"), 4)]


@pytest.fixture(scope="session")
def problem(problem_texts: list[str]) -> str:
    return problem_texts[0]

"""The counting task: generator, checker, and the split between training and evaluation."""

import json
import random
from itertools import islice
from pathlib import Path

import pytest

from qpdsl.zoo.mistakes import corrupted
from qpdsl.zoo.stories import LIMIT
from qpdsl.zoo.task import (
    LEVELS,
    STEP_SEPARATOR,
    Problem,
    evaluation_problems,
    extract_answer,
    held_out,
    judge,
    make_problem,
    parse_step,
    problems,
    split_steps,
)

SHIPPED = Path(__file__).parents[2] / "programs" / "data" / "counting-500.jsonl"

EXAMPLE = Problem(
    text="Mia has 18 apples. Mia buys 24 more. Tom has 3 times as many as Mia. How many apples does Tom have?",
    steps=("18 + 24 = 42.", "42 * 3 = 126. The answer is 126."),
    answer="126",
    level=2,
)


def test_the_checker_accepts_every_generated_solution() -> None:
    for problem in islice(problems(3), 2000):
        verdict = judge(problem, problem.solution)
        assert verdict.steps == [True] * problem.level
        assert verdict.right
        assert verdict.answer == problem.answer


def test_generated_equations_are_true_and_stay_in_range() -> None:
    for problem in islice(problems(4), 2000):
        assert problem.level == len(problem.steps)
        for step in problem.steps:
            equation = parse_step(step)
            assert equation is not None
            left, right = equation.left, equation.right
            assert equation.result == {"+": left + right, "-": left - right, "*": left * right}[equation.operator]
            assert all(0 <= number < LIMIT for number in (left, right, equation.result))


def test_levels_come_evenly_mixed() -> None:
    assert [problem.level for problem in islice(problems(5), 8)] == [*LEVELS, *LEVELS]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="level must be one of"):
        make_problem(random.Random(0), level=6)


@pytest.mark.parametrize(
    ("text", "steps", "answer"),
    [
        ("24 + 18 = 42.\n\n3 * 42 = 126. The answer is 126.", [True, True], "126"),
        ("18 + 24 = 42.\n\n42 * 3 = 126. The answer is 126.\n\n", [True, True], "126"),
        ("18 + 24 = 43.\n\n43 * 3 = 129. The answer is 129.", [False, False], "129"),
        ("18 + 24 = 42.\n\n42 + 3 = 45. The answer is 45.", [True, False], "45"),
        ("18 + 24 = 42.\n\n42 * 3 = 126. The answer is 125.", [True, False], "125"),
        ("18 + 24 = 42.\n\n42 * 3 = 126.", [True, False], None),
        ("18 + 24 = 42. The answer is 42.", [False], "42"),
        ("18 + 24 = 42.\n\n42 * 3 = 126. The answer is 126.\n\n126 + 1 = 127.", [True, True, False], "126"),
        ("some words", [False], None),
        ("", [], None),
    ],
)
def test_what_the_checker_says(text: str, steps: list[bool], answer: str | None) -> None:
    verdict = judge(EXAMPLE, text)
    assert verdict.steps == steps
    assert verdict.answer == answer
    assert verdict.right == (answer == "126")


def test_one_mistake_makes_its_step_and_all_later_steps_wrong() -> None:
    rng = random.Random(6)
    for problem in islice(problems(6), 2000):
        verdict = judge(problem, STEP_SEPARATOR.join(step.text for step in corrupted(problem, rng)))
        first = verdict.first_wrong
        assert first is not None
        assert verdict.steps == [True] * first + [False] * (len(verdict.steps) - first)


def test_steps_part_at_blank_lines() -> None:
    assert split_steps("a\n\nb\n\n") == ["a", "b"]
    assert extract_answer("The answer is 1. The answer is 22.") == "22"


def test_streams_are_reproducible_and_disjoint() -> None:
    assert list(islice(problems(7), 50)) == list(islice(problems(7), 50))
    assert not any(held_out(problem.text) for problem in islice(problems(7), 5000))
    assert all(held_out(problem.text) for problem in islice(problems(7, "held-out"), 500))


def test_the_shipped_evaluation_set_is_held_out_and_regenerates() -> None:
    rows = [json.loads(line) for line in SHIPPED.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == len({row["problem"] for row in rows}) == 500
    assert all(held_out(row["problem"]) for row in rows)
    assert [row["level"] for row in rows].count(2) == 125
    assert rows[0]["id"] == "count-001"
    expected = [(problem.text, problem.answer, problem.level) for problem in evaluation_problems()]
    assert [(row["problem"], row["answer"], row["level"]) for row in rows] == expected

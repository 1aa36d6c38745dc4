"""The counting task: generator, checker, and the split between training and evaluation."""

import json
import random
from itertools import islice

import pytest

from family.tasks.counting import (
    STEP_SEPARATOR,
    Problem,
    evaluation_problems,
    extract_answer,
    judge,
    make_problem,
    parse_step,
    problems,
    split_steps,
)
from family.tasks.held_out import held_out
from family.tasks.stories import COMPUTE, LEVELS, Equation, Fact
from family.tasks.wrong_solutions import corrupted_steps, judged_steps
from tests.support.paths import DATA

SHIPPED = DATA / "counting-500.jsonl"

EXAMPLE = Problem(
    text="Mia has 18 apples. Mia buys 24 more. Tom has 3 times as many as Mia. How many apples does Tom have?",
    facts=(Fact(Equation(18, "+", 24, 42), None), Fact(Equation(42, "*", 3, 126), 0)),
    level=1,
)
BRANCHED = Problem(
    text=(
        "Mia has 20 apples. Tom has 5 more than Mia. Ann has 2 times as many as Tom. Ben has 8 fewer than Mia. "
        "How many apples do Ben and Ann have together?"
    ),
    facts=(
        Fact(Equation(20, "+", 5, 25), None),
        Fact(Equation(25, "*", 2, 50), 0),
        Fact(Equation(20, "-", 8, 12), None),
        Fact(Equation(12, "+", 50, 62), 2, 1),
    ),
    level=4,
)


def test_the_checker_accepts_every_generated_solution() -> None:
    for problem in islice(problems(3), 2000):
        verdict = judge(problem, problem.solution)
        assert verdict.steps == [True] * len(problem.steps)
        assert verdict.right
        assert verdict.answer == problem.answer
        assert verdict.expected is None


def test_generated_equations_are_true_in_range_and_build_on_each_other() -> None:
    for problem in islice(problems(4), 2000):
        difficulty = LEVELS[problem.level]
        assert len(problem.facts) == difficulty.steps
        for index, fact in enumerate(problem.facts):
            equation = fact.equation
            assert parse_step(problem.steps[index]) == equation
            assert equation.result == COMPUTE[equation.operator](equation.left, equation.right)
            assert all(0 <= number < difficulty.limit for number in (equation.left, equation.right, equation.result))
            for operand, source in ((equation.left, fact.left_from), (equation.right, fact.right_from)):
                if source is None:
                    assert str(operand) in problem.text
                else:
                    assert source < index
                    assert operand == problem.facts[source].equation.result


def test_every_equation_of_a_story_is_needed_for_its_answer() -> None:
    for problem in islice(problems(8), 2000):
        needed, reached = {len(problem.facts) - 1}, {len(problem.facts) - 1}
        while reached:
            reached = set().union(*(problem.facts[index].needs for index in reached))
            needed |= reached
        assert needed == set(range(len(problem.facts)))


def test_harder_levels_have_asides_and_branches() -> None:
    texts = {level: [p.text for p in islice(problems(9), 1000) if p.level == level] for level in LEVELS}
    for level, difficulty in LEVELS.items():
        asides = sum(any(mark in text for mark in (" also has ", " years old", " day.")) for text in texts[level])
        branches = sum("together" in text for text in texts[level])
        assert (asides > 0) == (difficulty.asides > 0)
        assert (branches > 0) == difficulty.branches


def test_levels_come_evenly_mixed() -> None:
    assert [problem.level for problem in islice(problems(5), 10)] == [*LEVELS, *LEVELS]


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
        ("18 + 24 = 42.\n\n18 + 24 = 42.", [True, False], None),
    ],
)
def test_what_the_checker_says(text: str, steps: list[bool], answer: str | None) -> None:
    verdict = judge(EXAMPLE, text)
    assert verdict.steps == steps
    assert verdict.answer == answer
    assert verdict.right == (answer == "126")


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("20 + 5 = 25.\n\n25 * 2 = 50.\n\n20 - 8 = 12.\n\n12 + 50 = 62. The answer is 62.", [True] * 4),
        ("20 - 8 = 12.\n\n20 + 5 = 25.\n\n2 * 25 = 50.\n\n50 + 12 = 62. The answer is 62.", [True] * 4),
        ("20 + 5 = 25.\n\n20 - 8 = 12.\n\n12 + 50 = 62. The answer is 62.", [True, True, False]),
        ("25 * 2 = 50.\n\n20 + 5 = 25.", [False, False]),
        ("20 + 5 = 25.\n\n25 * 2 = 50. The answer is 50.", [True, False]),
    ],
)
def test_branches_may_come_in_any_order_but_not_before_what_they_need(text: str, steps: list[bool]) -> None:
    assert judge(BRANCHED, text).steps == steps


def test_what_the_story_calls_for_in_place_of_a_mistake() -> None:
    assert judge(BRANCHED, "20 - 8 = 12.\n\n20 + 5 = 26.").expected == "20 + 5 = 25."
    assert judge(EXAMPLE, "18 + 24 = 42.\n\n42 + 3 = 45.").expected == "42 * 3 = 126. The answer is 126."
    assert judge(EXAMPLE, f"{EXAMPLE.solution}\n\n1 + 1 = 2.").expected is None


def test_one_mistake_makes_its_step_and_all_later_steps_wrong() -> None:
    rng = random.Random(6)
    for problem in islice(problems(6), 2000):
        verdict = judge(problem, STEP_SEPARATOR.join(step.text for step in corrupted_steps(problem, rng)))
        first = verdict.first_wrong
        assert first is not None
        assert verdict.steps == [True] * first + [False] * (len(verdict.steps) - first)


def test_intended_steps_are_right_until_the_first_mistake() -> None:
    rng = random.Random(10)
    for problem in islice(problems(10), 1000):
        steps = corrupted_steps(problem, rng)
        first = next(index for index, step in enumerate(steps) if not step.right)
        for index, step in enumerate(steps[: first + 1]):
            assert step.intended is not None
            assert (step.text == step.intended) == (index < first)
            assert judge(problem, STEP_SEPARATOR.join([*(s.text for s in steps[:index]), step.intended])).steps[-1]


def test_judged_steps_say_what_was_right() -> None:
    steps = judged_steps(EXAMPLE, "18 + 24 = 42.\n\n42 * 3 = 129. The answer is 129.")
    assert [(step.right, step.intended) for step in steps] == [
        (True, "18 + 24 = 42."),
        (False, "42 * 3 = 126. The answer is 126."),
    ]


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
    assert [row["level"] for row in rows].count(2) == 100
    assert rows[0]["id"] == "count-001"
    expected = [(problem.text, problem.answer, problem.level) for problem in evaluation_problems()]
    assert [(row["problem"], row["answer"], row["level"]) for row in rows] == expected

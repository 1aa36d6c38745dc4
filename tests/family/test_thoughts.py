"""Thoughts about counting problems: their work is right, digit by digit, and each equation stands in them once."""

from __future__ import annotations

import re
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from family.tasks.counting import problems
from family.tasks.stories import COMPUTE, Equation
from family.tasks.thoughts import solution_steps, thought_lines, work_lines

NUMBERS = st.integers(0, 999)


def worked(left: int, operator: str, right: int) -> list[tuple[list[int], int]]:
    """The terms and the result of each line of work; every one is right."""
    lines = []
    for line in work_lines(Equation(left, operator, right, COMPUTE[operator](left, right))):
        terms, _, result = line.rpartition(" = ")
        assert eval(terms or result) == int(result)
        lines.append(([int(term) for term in re.findall(r"\d+", terms)], int(result)))
    return lines


@given(NUMBERS, NUMBERS)
def test_a_sum_is_worked_out_from_the_last_digit_with_carries(left: int, right: int) -> None:
    lines = worked(left, "+", right)
    assert len(lines) == max(len(str(left)), len(str(right)))
    digits = [*(result % 10 for _, result in lines[:-1]), lines[-1][1]]
    assert sum(digit * 10**place for place, digit in enumerate(digits)) == left + right


@given(NUMBERS, NUMBERS)
def test_a_difference_is_worked_out_from_the_last_digit_with_borrowed_tens(one: int, other: int) -> None:
    left, right = max(one, other), min(one, other)
    lines = worked(left, "-", right)
    assert all(0 <= result <= 9 for _, result in lines)
    assert sum(result * 10**place for place, (_, result) in enumerate(lines)) == left - right


@given(NUMBERS, st.integers(2, 9), st.booleans())
def test_a_product_is_worked_out_from_the_last_digit_with_carries(many: int, factor: int, swapped: bool) -> None:
    lines = worked(*((factor, "*", many) if swapped else (many, "*", factor)))
    assert len(lines) == len(str(many))
    digits = [*(result % 10 for _, result in lines[:-1]), lines[-1][1]]
    assert sum(digit * 10**place for place, digit in enumerate(digits)) == many * factor


def test_results_of_a_solution_are_learned_where_they_were_worked_out_or_all() -> None:
    for problem in islice(problems(2), 20):
        for guessing in (False, True):
            steps = solution_steps(problem, 1, guessing)
            assert "".join(piece.text for step in steps for piece in step) == problem.solution
            assert [step[1].learned for step in steps] == [True, *[guessing] * (len(steps) - 1)]


def test_each_equation_stands_in_the_thought_and_has_no_other_result_there() -> None:
    for problem in islice(problems(1), 200):
        steps = ["".join(lines) for lines in thought_lines(problem)]
        for fact, step in zip(problem.facts, steps, strict=True):
            asked, *_, stated = step.rstrip().split("\n")
            assert stated == f"{fact.equation}."
            assert stated.startswith(f"{asked} = ")
        # Lines of work are true as well, so that what follows "12 - 8 = " is the same wherever it stands.
        for terms, result in re.findall(r"(?m)^(.+) = (\d+)", "".join(steps)):
            assert eval(terms) == int(result)

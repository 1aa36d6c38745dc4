"""Thoughts about counting problems: their checks are right, and correct wrong guesses."""

from __future__ import annotations

import random
import re
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from family.tasks.counting import problems
from family.tasks.stories import COMPUTE, Equation
from family.tasks.thoughts import check_text, solution_steps, thought_steps

NUMBERS = st.integers(0, 999)


def checked(left: int, operator: str, right: int) -> list[tuple[list[int], int]]:
    """The terms and the result of each line of work; every one is right."""
    work, _, stated = check_text(Equation(left, operator, right, COMPUTE[operator](left, right))).rpartition(": ")
    assert int(stated) == COMPUTE[operator](left, right)
    lines = []
    for line in work.removeprefix("Check ").split(", "):
        terms, result = line.split(" = ")
        assert eval(terms) == int(result)
        lines.append(([int(term) for term in re.findall(r"\d+", terms)], int(result)))
    return lines


@given(NUMBERS, NUMBERS)
def test_a_sum_is_worked_out_from_the_last_digit_with_carries(left: int, right: int) -> None:
    lines = checked(left, "+", right)
    assert len(lines) >= min(len(str(left)), len(str(right)))
    assert sum(result % 10 * 10**place for place, (_, result) in enumerate(lines)) == (left + right) % 10 ** len(lines)


@given(NUMBERS, NUMBERS)
def test_a_difference_is_worked_out_from_the_last_digit_with_borrowed_tens(one: int, other: int) -> None:
    left, right = max(one, other), min(one, other)
    lines = checked(left, "-", right)
    assert all(0 <= result <= 9 for _, result in lines)
    assert sum(result * 10**place for place, (_, result) in enumerate(lines)) == (left - right) % 10 ** len(lines)


@given(NUMBERS, st.integers(2, 9), st.booleans())
def test_a_product_is_worked_out_from_the_last_digit_with_carries(many: int, factor: int, swapped: bool) -> None:
    lines = checked(*((factor, "*", many) if swapped else (many, "*", factor)))
    assert len(lines) == len(str(many))
    digits = [*(result % 10 for _, result in lines[:-1]), lines[-1][1]]
    assert sum(digit * 10**place for place, digit in enumerate(digits)) == many * factor


def test_results_of_a_solution_are_learned_where_they_were_checked_or_all() -> None:
    for problem in islice(problems(2), 20):
        for guessing in (False, True):
            steps = solution_steps(problem, 1, guessing)
            assert "".join(piece.text for step in steps for piece in step) == problem.solution
            assert [step[1].learned for step in steps] == [True, *[guessing] * (len(steps) - 1)]


def test_three_guesses_in_ten_are_wrong_not_learned_and_corrected() -> None:
    rng = random.Random(1)
    steps = [
        (fact, step)
        for problem in islice(problems(1), 200)
        for fact, step in zip(problem.facts, thought_steps(problem, rng, guessing=True), strict=True)
    ]
    wrong = [(fact, step) for fact, step in steps if not step[1].learned]
    assert 0.2 < len(wrong) / len(steps) < 0.4
    for fact, (_, guess, check) in wrong:
        assert guess.text != str(fact.equation.result)
        assert f": {fact.equation.result}, not {guess.text}." in check.text
    assert all(guess.text == str(fact.equation.result) for fact, (_, guess, _) in steps if guess.learned)

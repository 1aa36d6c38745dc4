"""Solutions with mistakes, and what a careful solver would have written in each place.

The verifier learns from both: the labels say which steps are wrong, the intended text says at which token.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from family.tasks.counting import STEP_SEPARATOR, Problem, judge, split_steps, step_text
from family.tasks.stories import COMPUTE, Equation, Fact

_LARGEST = 10_000  # results stay below this


@dataclass(frozen=True)
class JudgedStep:
    """A step as written, whether it is right, and the right text for its place (None after an earlier mistake)."""

    text: str
    right: bool
    intended: str | None


def judged_steps(problem: Problem, text: str) -> list[JudgedStep]:
    """The steps of any solution text with the checker's flags."""
    verdict = judge(problem, text)
    return [
        JudgedStep(step, right, step if right else verdict.expected if index == verdict.first_wrong else None)
        for index, (step, right) in enumerate(zip(split_steps(text), verdict.steps, strict=True))
    ]


def corrupted_steps(problem: Problem, rng: random.Random) -> list[JudgedStep]:
    """The canonical solution with at least one mistake.

    Mostly a wrong equation whose result the later steps use; their intended text is what follows from the numbers as
    written. Sometimes a step is left out, or the answer is given too early.
    """
    if rng.random() < 0.15:
        return judged_steps(problem, STEP_SEPARATOR.join(_out_of_order(problem, rng)))
    numbers = [int(number) for number in re.findall(r"\d+", problem.text)]
    first = rng.randrange(len(problem.facts))
    texts: list[str] = []
    intended: list[str | None] = []
    written: list[int] = []
    for index, fact in enumerate(problem.facts):
        last = index == len(problem.facts) - 1
        honest, exact = _follow(fact, written)
        intended.append(step_text(honest, last) if exact else None)
        current, stated = honest, honest.result
        if index == first or (index > first and rng.random() < 0.3):
            if last and rng.random() < 0.1:
                stated = change_digit(honest.result, rng)
            else:
                current = corrupt(honest, [*numbers, *written], rng)
                stated = current.result
        texts.append(f"{current}. The answer is {stated}." if last else f"{current}.")
        written.append(current.result)
    flags = judge(problem, STEP_SEPARATOR.join(texts)).steps
    return [JudgedStep(*step) for step in zip(texts, flags, intended, strict=True)]


def _follow(fact: Fact, written: list[int]) -> tuple[Equation, bool]:
    """The fact's equation over the results as written, and whether its result could be stated exactly."""
    equation = fact.equation
    left = equation.left if fact.left_from is None else written[fact.left_from]
    right = equation.right if fact.right_from is None else written[fact.right_from]
    result = COMPUTE[equation.operator](left, right)
    stated = abs(result) % _LARGEST
    return Equation(left, equation.operator, right, stated), stated == result


def _out_of_order(problem: Problem, rng: random.Random) -> list[str]:
    """The solution with one step left out, or stopped with an answer before its end."""
    steps = list(problem.steps)
    if rng.random() < 0.5:
        end = rng.randrange(len(steps) - 1)
        return [*steps[:end], step_text(problem.facts[end].equation, last=True)]
    del steps[rng.randrange(len(steps) - 1)]
    return steps


def corrupt(equation: Equation, numbers: list[int], rng: random.Random) -> Equation:
    """One mistake: a wrong result (most often), or a wrong operand or operator with the result that follows from it."""
    kind = rng.random()
    left, operator, right = equation.left, equation.operator, equation.right
    if kind >= 0.9:
        operator = rng.choice([other for other in "+-*" if other != operator])
    elif kind >= 0.75:
        left = _other_number(left, numbers, rng)
    elif kind >= 0.6:
        right = _other_number(right, numbers, rng)
    if operator == "-" and right > left:
        operator = "+"
    result = COMPUTE[operator](left, right)
    changed = Equation(left, operator, right, result)
    if result >= _LARGEST or changed.says_the_same(equation):
        return Equation(equation.left, equation.operator, equation.right, wrong_result(equation.result, rng))
    return changed


def change_digit(number: int, rng: random.Random) -> int:
    """`number` with one digit replaced by another."""
    digits = list(str(number))
    place = rng.randrange(len(digits))
    digits[place] = rng.choice([digit for digit in "0123456789" if digit != digits[place]])
    return int("".join(digits))


def wrong_result(result: int, rng: random.Random) -> int:
    """Another number: mostly one digit changed, else off by a little, as carries that were missed are."""
    if rng.random() < 0.6:
        return change_digit(result, rng)
    off = rng.choice((1, 2, 9, 10, 10, 20, 90, 100, 100, 200))
    return result - off if result >= off and rng.random() < 0.5 else result + off


def _other_number(number: int, numbers: list[int], rng: random.Random) -> int:
    others = [other for other in numbers if other != number]
    if others and rng.random() < 0.5:
        return rng.choice(others)
    changed = change_digit(number, rng)
    return changed if changed != number else number + 1
